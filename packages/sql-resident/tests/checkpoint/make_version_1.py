"""Writes the fixture ``tests/data/checkpoint_v1.npz``: a file of format version 1.

Uses NumPy alone, so that the fixture does not depend on the code that has to read it.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

PATH = Path(__file__).parent.parent / "data" / "checkpoint_v1.npz"

MANIFEST = {
    "format_version": 1,
    "step": 42,
    "seed": 1337,
    "data_position": {"epoch": 0, "offset": 504},
    "schedule": {"kind": "constant", "lr": 0.001},
    "configuration": {"layers": 2},
    "sql_hash": "0f1e2d",
    "created_with": {"sql-resident": "0.0.1", "numpy": "2.1.0"},
}


def arrays() -> dict[str, np.ndarray]:
    """Return the arrays of the fixture."""
    return {
        "wte": np.arange(12, dtype=np.float32).reshape(3, 4) / 8,
        "wte.m": np.linspace(-1, 1, 12).reshape(3, 4),
        "count": np.array(42),
    }


def main() -> None:
    """Write the fixture."""
    document = np.frombuffer(json.dumps(MANIFEST).encode("ascii"), np.uint8)
    PATH.parent.mkdir(exist_ok=True)
    np.savez(PATH, __manifest__=document, **arrays())


if __name__ == "__main__":
    main()

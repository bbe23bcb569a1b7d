"""Saves a small checkpoint, then one too large for its disk or its file-size limit.

Usage: python limited_saver.py FOLDER [LIMIT]

LIMIT is the largest file in bytes that the process may write. Prints a JSON object: the error of
the second save, whether the first file is unchanged, and the names in the folder.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import numpy as np
from sql_resident.checkpoint import load, make_checkpoint, save
from sql_resident.errors import CheckpointError


def main(folder: Path, limit: int | None) -> dict[str, object]:
    """Save twice; return the report."""
    path = folder / "state.npz"
    small = make_checkpoint({"w": np.arange(100.0)}, step=1, seed=0)
    large = make_checkpoint({"w": np.arange(100_000.0)}, step=2, seed=0)
    save(path, small)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    error = None
    try:
        save(path, large)
    except CheckpointError as raised:
        error = str(raised)
    return {
        "error": error,
        "unchanged": load(path) == small,
        "names": sorted(entry.name for entry in folder.iterdir()),
    }


if __name__ == "__main__":
    limit = int(sys.argv[2]) if len(sys.argv) > 2 else None
    print(json.dumps(main(Path(sys.argv[1]), limit)))

"""Seconds from SQL text to a session whose step can run, by the number of a GPT's layers.

    python benchmarks/planning.py --layers 3,6,12,24,48 --out record.json

Nothing is compiled. Planning is symbolic, so sizes hardly matter: the model is narrow (width 32,
context 16) to leave the making of weights out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path

import torch
import xarray as xr
from sql_resident import AdamW, BatchInput, TrainingSession
from sql_resident.gpt import TABLE_DIMS, GPTConfig, initial_weights, loss_sql


def seconds(layers: int) -> float:
    """Of making one session; its weights exist before."""
    config = GPTConfig(layers=layers, heads=2, width=32, context=16, vocabulary=17)
    weights = initial_weights(config, 0)
    tokens = BatchInput(("b", "t"), (2, config.context), "token", config.vocabulary)
    start = time.perf_counter()
    TrainingSession(
        loss=loss_sql(config),
        parameters={n: xr.DataArray(weights[n], dims=d) for n, d in TABLE_DIMS.items()},
        batch={"tokens": tokens, "targets": tokens},
        optimizer=AdamW(),
        clip_norm=1.0,
        learning_rate=1e-3,
        hyper={"dropout": 0.2},
    )
    return time.perf_counter() - start


def main() -> None:
    """Measure, print a table, write a record if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", default="3,6,12,24,48")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    seconds(1)  # Imports are not planning.
    found = {}
    for layers in map(int, options.layers.split(",")):
        found[layers] = seconds(layers)
        print(f"{layers:3d} layers {found[layers]:7.2f} s, {found[layers] / layers:5.2f} a layer")
    if options.out is not None:
        record = {
            "kind": "planning",
            "torch": torch.__version__,
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "seconds": found,
        }
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

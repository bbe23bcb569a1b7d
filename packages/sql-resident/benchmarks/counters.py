"""What steady steps of a GPT cost beside the arithmetic, and that training resumes exactly.

    python benchmarks/counters.py --out record.json
    python benchmarks/counters.py --device cuda --precision tf32 --batch 12 --out record.json

Three parts, each with the GPT of ``sql_resident.gpt``:

* *steady*: the counters before and after 100 steps of the real size (``--layers`` and so on), with
  nothing exported in between.
* *determinism*: two sessions of a smaller size, in two processes, report and hold the same bits
  after each of 20 updates.
* *resume*: a third run in the second process continues from a checkpoint of each of those 20 steps
  to the end. Batches, losses, learning rates and the final state are compared bit for bit.

The exit status is 1 unless everything is as promised. Times are not measured here.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from sql_resident import AdamW, BatchInput, Counters, StepReport, TrainingSession, WarmupCosine
from sql_resident.gpt import TABLE_DIMS, GPTConfig, initial_weights, is_matrix, loss_sql

SEED = 1337
#: Of determinism and resume: small, so that 20 resumed runs take seconds.
SMALL = GPTConfig(layers=2, heads=2, width=64, context=32, vocabulary=65)
SMALL_BATCH = 4
POINTS = 20
#: What one step reads back: loss, gradient norm, and a sum that is finite if the state is.
READ_A_STEP = 3
#: step, seed, lr and dropout, 8 bytes each.
SCALAR_BYTES = 4 * 8


@dataclass(frozen=True, slots=True)
class Target:
    """Where sessions run."""

    device: str
    precision: str

    def session(self, config: GPTConfig, batch_size: int) -> TrainingSession:
        """A fresh session with nanoGPT's recipe."""
        tokens = BatchInput(("b", "t"), (batch_size, config.context), "token", config.vocabulary)
        weights = initial_weights(config, SEED)
        return TrainingSession(
            loss=loss_sql(config),
            parameters={n: xr.DataArray(weights[n], dims=d) for n, d in TABLE_DIMS.items()},
            batch={"tokens": tokens, "targets": tokens},
            optimizer=AdamW((0.9, 0.99), 1e-8, {n: 0.1 for n in TABLE_DIMS if is_matrix(n)}),
            clip_norm=1.0,
            learning_rate=WarmupCosine(peak=1e-3, floor=1e-4, warmup=10, total=5000),
            hyper={"dropout": config.dropout},
            seed=SEED,
            device=self.device,
            precision=self.precision,
        )


def batch_of(position: int, config: GPTConfig, size: int) -> dict[str, np.ndarray]:
    """The batch of a data position; a pure function of it and the seed."""
    generator = np.random.default_rng((SEED, position))
    text = generator.integers(0, config.vocabulary, (size, config.context + 1))
    return {"tokens": text[:, :-1].copy(), "targets": text[:, 1:].copy()}


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """The first 16 digits of a sha256 over names, types, shapes and bytes."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(f"{name} {array.dtype} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()[:16]


# --- steady steps -----------------------------------------------------------------------


def steady(target: Target, config: GPTConfig, batch_size: int, steps: int) -> dict[str, Any]:
    """Counters around ``steps`` steps, after two that compile and fill both state buffers."""
    session = target.session(config, batch_size)
    for position in range(2):
        session.step(batch_of(position, config, batch_size))
    if target.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before = session.counters
    losses = []
    for position in range(2, 2 + steps):
        losses.append(session.step(batch_of(position, config, batch_size)).loss)
    after = session.counters
    uploaded = sum(a.nbytes for a in batch_of(0, config, batch_size).values()) + SCALAR_BYTES
    expected = before.plus(
        steps=steps, scalars_read=READ_A_STEP * steps, bytes_uploaded=uploaded * steps
    )
    memory = session.memory()
    return {
        "steps": steps,
        "config": asdict(config),
        "parameters": config.parameter_count,
        "batch_size": batch_size,
        "counters_before": asdict(before),
        "counters_after": asdict(after),
        "a_step": _by_step(before, after, steps),
        "as_promised": after == expected and before.compilations == 1,
        "memory": {
            "state_bytes": memory.state,
            "estimated_step_bytes": memory.step,
            "device_peak_bytes": _device_peak(target.device),
        },
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }


def _by_step(before: Counters, after: Counters, steps: int) -> dict[str, float]:
    """How much each counter grew in a step."""
    return {name: (getattr(after, name) - getattr(before, name)) / steps for name in asdict(before)}


def _device_peak(device: str) -> int | None:
    """Largest memory that torch allocated on the device in the steady steps."""
    return torch.cuda.max_memory_allocated() if device == "cuda" else None


# --- determinism and resume -------------------------------------------------------------


def trained(session: TrainingSession, *, total: int, states: bool) -> list[dict[str, str]]:
    """Continue to ``total`` updates; what each of them took, reported and (if asked) made."""
    found = []
    while session.step_count < total:
        batch = batch_of(session.data_position, SMALL, SMALL_BATCH)
        report = session.step(batch)
        entry = {"batch": digest(batch), **_exact(report)}
        if states or session.step_count == total:
            entry["state"] = digest(session.state())
        found.append(entry)
    return found


def _exact(report: StepReport) -> dict[str, str]:
    """The report's numbers with all their bits."""
    numbers = ("loss", "grad_norm", "learning_rate")
    return {name: getattr(report, name).hex() for name in numbers}


def second_process(target: Target, folder: Path) -> dict[str, Any]:
    """The second run from the start, and the rest of the run from every checkpoint."""
    session = target.session(SMALL, SMALL_BATCH)
    again = trained(session, total=POINTS, states=True)
    resumed = {}
    for point in range(POINTS):
        # Everything that a checkpoint holds is wrong before it is restored.
        session.learning_rate, session.seed = 9.0, 7
        session.set_hyper(dropout=0.9)
        session.restore(folder / f"{point}.npz")
        resumed[str(point)] = trained(session, total=POINTS, states=False)
    return {"again": again, "resumed": resumed, "compilations": session.counters.compilations}


def exactness(target: Target) -> dict[str, Any]:
    """Run once here, and once more and from every step in another process; compare."""
    with tempfile.TemporaryDirectory(prefix="counters-") as name:
        folder = Path(name)
        session = target.session(SMALL, SMALL_BATCH)
        first = []
        for point in range(POINTS):
            session.save(folder / f"{point}.npz")
            first += trained(session, total=point + 1, states=True)
        command = [sys.executable, __file__, "--device", target.device]
        command += ["--precision", target.precision, "--second-process", name]
        threads = str(torch.get_num_threads())
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": threads})
        other = json.loads((folder / "second.json").read_text())
    points = []
    for point in range(POINTS):
        rest, resumed = first[point:], other["resumed"][str(point)]
        equal = {
            key: [entry[key] for entry in rest] == [entry[key] for entry in resumed]
            for key in ("batch", "loss", "grad_norm", "learning_rate")
        }
        equal["state"] = rest[-1]["state"] == resumed[-1]["state"]
        points.append({"point": point, "updates": len(resumed), "equal": equal})
    return {
        "config": asdict(SMALL),
        "batch_size": SMALL_BATCH,
        "updates": POINTS,
        "first_run": first,
        "second_run_equal": first == other["again"],
        "compilations_of_second_process": other["compilations"],
        "interruption_points": points,
        "as_promised": first == other["again"]
        and other["compilations"] == 1
        and all(all(point["equal"].values()) for point in points),
    }


def environment() -> dict[str, Any]:
    """Versions and hardware that the record needs to be read later."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def main() -> int:
    """Run the parts and write the record; 0 if everything is as promised."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    real = GPTConfig()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", default="float32")
    for name in ("layers", "heads", "width", "context"):
        parser.add_argument(f"--{name}", type=int, default=getattr(real, name))
    parser.add_argument("--batch", type=int, default=1, help="sequences of a steady step")
    parser.add_argument("--steps", type=int, default=100, help="steady steps")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--second-process", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    target = Target(options.device, options.precision)
    if options.second_process is not None:
        found = second_process(target, options.second_process)
        (options.second_process / "second.json").write_text(json.dumps(found))
        return 0
    config = GPTConfig(
        layers=options.layers,
        heads=options.heads,
        width=options.width,
        context=options.context,
    )
    parts = {
        "steady": steady(target, config, options.batch, options.steps),
        "exactness": exactness(target),
    }
    promised = all(part["as_promised"] for part in parts.values())
    record = {
        "kind": "counters",
        "device": target.device,
        "precision": target.precision,
        "as_promised": promised,
        "environment": environment(),
        **parts,
    }
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    steps, points = parts["steady"], parts["exactness"]["interruption_points"]
    print("a steady step:", ", ".join(f"{k} {v:g}" for k, v in steps["a_step"].items()))
    print("compilations:", steps["counters_after"]["compilations"])
    print("two runs equal:", parts["exactness"]["second_run_equal"])
    print("resumed equal:", sum(all(p["equal"].values()) for p in points), "of", len(points))
    print("as promised" if promised else "NOT AS PROMISED")
    return 0 if promised else 1


if __name__ == "__main__":
    sys.exit(main())

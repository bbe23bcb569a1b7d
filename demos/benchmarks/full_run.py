"""The whole recipe in SQL and in native PyTorch, one after the other: losses and total times.

    python demos/benchmarks/full_run.py --precision bfloat16 --batch 64 --out runs/full

Both train nanoGPT's character model on the same batches of the same text, with the same learning
rates, and evaluate on the same batches. The SQL side is the demo as it is; the native side is the
strongest opponent of ``sql-oracle bench``: compiled, fused, the whole step in one CUDA graph. Their
weights start from different random numbers, and so do their dropout masks.

Writes ``full_run.json``, ``full_run.png`` and ``sample.txt``, drawn from the model in SQL.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from sql_oracle import GPTConfig, NativeGraphed, TrainingRecipe, precision_policy

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from shakespeare_gpt.batches import BatchSource, Stream
from shakespeare_gpt.cli import main as demo
from shakespeare_gpt.cli import parse
from shakespeare_gpt.data import encode, find_text, split
from shakespeare_gpt.plots import loss_picture
from shakespeare_gpt.settings import Settings
from shakespeare_gpt.training import RECIPE_SCHEDULE, train

Run = dict[str, Any]
#: Of the losses of batches, one in so many is kept.
_KEPT = 10


def main() -> int:
    """Train both, write the report; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the report")
    own, rest = parser.parse_known_args()
    given = [*rest, "--output", str(own.out), "--sample-length", "0"]
    settings = parse([*given, "--checkpoint", str(own.out / "last.npz")])
    if not settings.device.startswith("cuda"):
        parser.error("the native side is a CUDA graph; use --device cuda")
    runs = {"sql": _sql(settings), "native graphed": _native(settings)}
    record = {
        "kind": "full run",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "precision": settings.precision,
        "batch": settings.batch,
        "context": settings.model.context,
        "dropout": settings.model.dropout,
        "steps": settings.steps,
        "eval_interval": settings.eval_interval,
        "eval_batches": settings.eval_batches,
        "runs": runs,
    }
    (own.out / "full_run.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    _plot(own.out / "full_run.png", runs)
    for name, run in runs.items():
        times = ", ".join(
            f"{what} {1e-3 * round(1e3 * s):g} s" for what, s in run["seconds"].items()
        )
        print(f"{name}: best validation loss {run['best_validation_loss']:.4f}; {times}")
    resume = ["--resume", str(own.out / "last.npz"), "--output", str(own.out / "sample")]
    return demo([*rest, *resume, "--sample-length", "600"])


def _sql(settings: Settings) -> Run:
    seconds: dict[str, float] = {}
    with _timed(seconds, "total"):
        metrics = train(settings)
    first, *later = [u["seconds"] for u in metrics.updates]
    seconds["updates"] = sum(later)
    seconds["evaluations"] = sum(e["seconds"] for e in metrics.evaluations)
    # Planning, folding, compilation and the first update, and reading the text.
    seconds["until the first update"] = seconds["total"] - sum(later) - seconds["evaluations"]
    seconds["first update"] = first
    losses = [(u["step"], u["loss"]) for u in metrics.updates]
    found = [(e["step"], e["training_loss"], e["validation_loss"]) for e in metrics.evaluations]
    return _run(losses, found, statistics.median(later), seconds)


def _native(settings: Settings) -> Run:
    seconds: dict[str, float] = {}
    with _timed(seconds, "total"):
        text = find_text(settings.data, sha256=settings.data_sha256)
        model = settings.model
        training, validation = split(encode(text.characters), model.context)
        source = BatchSource(training, validation, settings.batch, model.context, settings.seed)
        sizes = GPTConfig(model.layers, model.heads, model.width, model.context, model.vocabulary)
        precision = precision_policy(settings.precision)
        recipe = TrainingRecipe(
            sizes, precision, settings.device, model.dropout, seed=settings.seed
        )
        contender = NativeGraphed("native graphed", recipe, compiled=True)
        with _timed(seconds, "until the first update"):
            contender.setup(source.draw(Stream.UPDATE, 0))
            contender.restart()  # its captured step has made updates
        losses, evaluations, each = [], [], []
        seconds["evaluations"] = 0.0
        for step in range(settings.steps):
            before = time.perf_counter()
            contender.set_learning_rate(RECIPE_SCHEDULE(step))
            contender.stage(source.draw(Stream.UPDATE, step))
            losses.append((step + 1, contender.step()))
            each.append(time.perf_counter() - before)
            if (step + 1) % settings.eval_interval == 0:
                with _timed(seconds, "evaluations"):
                    streams = (Stream.EVALUATE_TRAINING, Stream.EVALUATE_VALIDATION)
                    found = [
                        statistics.fmean(
                            contender.evaluate(source.draw(stream, step + 1, index))
                            for index in range(settings.eval_batches)
                        )
                        for stream in streams
                    ]
                evaluations.append((step + 1, *found))
                print(
                    f"native after {step + 1} updates: {found[0]:.4f}, {found[1]:.4f}", flush=True
                )
    seconds["updates"] = sum(each)
    return _run(losses, evaluations, statistics.median(each), seconds)


def _run(
    losses: list[tuple[int, float]],
    evaluations: list[tuple[int, float, float]],
    median: float,
    seconds: dict[str, float],
) -> Run:
    return {
        "best_validation_loss": min(validation for _, _, validation in evaluations),
        "median_update_ms": 1e3 * median,
        "seconds": seconds,
        "losses": losses[::_KEPT],
        "evaluations": evaluations,
    }


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    before = time.perf_counter()
    yield
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - before


def _plot(path: Path, runs: dict[str, Run]) -> None:
    with loss_picture(path) as axes:
        for (name, run), color in zip(runs.items(), ("#1f4e8c", "#c8553d"), strict=True):
            axes.plot(*zip(*run["losses"], strict=True), color=color, alpha=0.25, linewidth=1)
            steps, training, validation = zip(*run["evaluations"], strict=True)
            axes.plot(steps, training, color=color, linestyle="--", label=f"{name}, training")
            axes.plot(
                steps,
                validation,
                color=color,
                marker="o",
                markersize=4,
                label=f"{name}, validation",
            )
        axes.set_ylim(0.8, 2.6)


if __name__ == "__main__":
    raise SystemExit(main())

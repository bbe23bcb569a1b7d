"""The command line of the demo."""

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from sql_compact import CompactError
from sql_resident.gpt import GPTConfig

from .errors import DemoError
from .settings import Settings
from .training import train

__all__ = ["main", "parse"]


def parse(arguments: Sequence[str] | None = None) -> Settings:
    """Settings from command-line arguments (those of the process without any)."""
    parser = _parser()
    given = vars(parser.parse_args(arguments))
    sizes = ("layers", "heads", "width", "context", "dropout")
    model = {name: given.pop(name) for name in sizes}
    try:
        return Settings(model=GPTConfig(**model), **given)
    except (DemoError, CompactError) as error:
        parser.error(str(error))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns the exit status: 0, 1 after an error, 130 when interrupted."""
    settings = parse(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a log shows each line when it is printed
    try:
        train(settings)
    except (DemoError, CompactError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"interrupted; the metrics so far are in {settings.output}", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    defaults = Settings()
    model = defaults.model
    parser = argparse.ArgumentParser(
        description="Train a GPT written in SQL on Shakespeare's text, character by character.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    size = parser.add_argument_group("sizes of the model")
    size.add_argument("--layers", type=int, default=model.layers, help="transformer blocks")
    size.add_argument("--heads", type=int, default=model.heads, help="attention heads in a block")
    size.add_argument("--width", type=int, default=model.width, help="channels")
    size.add_argument("--context", type=int, default=model.context, help="positions")
    size.add_argument("--dropout", type=float, default=model.dropout, help="probability")

    run = parser.add_argument_group("training")
    run.add_argument("--steps", type=int, default=defaults.steps, help="updates in all")
    run.add_argument("--batch", type=int, default=defaults.batch, help="sequences in a batch")
    run.add_argument("--seed", type=int, default=defaults.seed, help="of everything drawn")
    run.add_argument("--data", type=Path, help="text file to train on (default: Shakespeare)")
    run.add_argument("--data-sha256", help="expected sha256 of the --data file")
    run.add_argument(
        "--max-time",
        type=float,
        dest="max_seconds",
        metavar="SECONDS",
        help="start no further update after this time",
    )
    run.add_argument("--checkpoint", type=Path, help="write the state here")
    run.add_argument("--resume", type=Path, help="continue from this state")

    machine = parser.add_argument_group("machine")
    machine.add_argument("--device", default=defaults.device, help="cpu, cuda or cuda:N")
    machine.add_argument(
        "--precision",
        choices=("float64", "float32", "tf32", "bfloat16"),
        help="(default: tf32 on CUDA, else float32)",
    )
    machine.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="compile the step (default: on CUDA only)",
    )

    output = parser.add_argument_group("evaluation and output")
    output.add_argument(
        "--eval-interval", type=int, default=defaults.eval_interval, help="updates between two"
    )
    output.add_argument(
        "--eval-batches", type=int, default=defaults.eval_batches, help="batches of each split"
    )
    output.add_argument(
        "--eval-at-start", action="store_true", help="evaluate before the first update too"
    )
    output.add_argument("--output", type=Path, default=defaults.output, help="folder")
    output.add_argument(
        "--sample-length", type=int, default=defaults.sample_length, help="characters drawn"
    )
    output.add_argument(
        "--sample-seconds",
        type=float,
        default=defaults.sample_seconds,
        help="cut the sample short after this time",
    )
    return parser

"""The command ``sql-oracle``.

Exit status: 0 everything agrees, 1 a breach, 2 the request cannot be carried out, 130 interrupted.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from sql_compact import CompactError

from sql_oracle.batches import synthetic_batches, text_batches
from sql_oracle.bench import (
    BenchSettings,
    SessionContender,
    bench,
    bench_record,
    bench_table,
)
from sql_oracle.check import Comparison, check
from sql_oracle.errors import OracleError
from sql_oracle.huggingface import compare_with_transformers, transformers_limit
from sql_oracle.mapping import gpt_mapping
from sql_oracle.masks import PhiloxMasks
from sql_oracle.nanogpt import NanoGPT, build_model, load_model_file
from sql_oracle.native import Contender, TrainingRecipe, native_contenders
from sql_oracle.noise import largest, measure_noise_floor
from sql_oracle.precision import PRECISIONS, precision_policy
from sql_oracle.protocols import Batch
from sql_oracle.reference import GPT, GPTConfig
from sql_oracle.report import (
    check_record,
    check_summary,
    check_table,
    check_writable,
    environment,
    text_table,
    write_json,
)
from sql_oracle.sessions import LossSQL, Recipe, build_session, default_loss_sql, read_sql
from sql_oracle.training import AdamWOptions, decay_matrices, warmup_cosine

PASSED, BREACHED, REFUSED, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = parser().parse_args(arguments)
    shown = warnings.showwarning
    warnings.showwarning = _show_warning
    try:
        torch.set_num_threads(options.threads or torch.get_num_threads())
        if options.json is not None:
            check_writable(options.json)
        status: int = options.run(options)
    except CompactError as error:
        return _refuse(str(error))
    except (MemoryError, torch.OutOfMemoryError):
        return _refuse(_NO_MEMORY)
    except RuntimeError as error:
        # torch has no type of its own for the memory of the CPU.
        if "DefaultCPUAllocator" not in str(error):
            raise
        return _refuse(_NO_MEMORY)
    except KeyboardInterrupt:
        _refuse("interrupted")
        return INTERRUPTED
    finally:
        warnings.showwarning = shown
    return status


_NO_MEMORY = "not enough memory; ask for a smaller model or --batch"


def _refuse(reason: str) -> int:
    print(f"sql-oracle: {reason}", file=sys.stderr)
    return REFUSED


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    top = argparse.ArgumentParser(
        prog="sql-oracle",
        description="Check training in SQL against PyTorch, and time it side by side.",
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    one = commands.add_parser("check", help="train both sides and compare every number")
    _model_arguments(one)
    one.add_argument("--steps", type=_positive, default=5, help="updates to compare (default 5)")
    one.add_argument("--keep-going", action="store_true", help="do not stop at the first breach")
    one.add_argument(
        "--follow",
        action="store_true",
        help="PyTorch continues from the session's state after each update",
    )
    one.add_argument(
        "--checkpoint",
        metavar="FILE",
        help="start from the weights, moments and step of a session's checkpoint",
    )
    one.add_argument("--data", metavar="FILE", help="text to train on; synthetic tokens without")
    one.add_argument(
        "--transformers",
        action="store_true",
        help="check the built-in PyTorch model against Hugging Face's GPT-2 instead",
    )
    one.set_defaults(run=_check)

    two = commands.add_parser("bench", help="time the SQL step and native PyTorch in turns")
    _model_arguments(two)
    two.add_argument("--rounds", type=_positive, default=10, help="turns of each (default 10)")
    two.add_argument("--block", type=_positive, default=5, help="timed steps a turn (default 5)")
    two.add_argument("--baseline", metavar="NAME", help="contender that ratios refer to")
    two.add_argument("--no-compile", action="store_true", help="leave compiled contenders out")
    two.add_argument("--no-sql", action="store_true", help="time native PyTorch only")
    two.set_defaults(run=_bench)

    three = commands.add_parser("noise", help="measure the noise that tolerances rest on")
    _size_arguments(three)
    three.add_argument("--steps", type=_positive, default=5, help="updates (default 5)")
    three.add_argument(
        "--seeds", type=_positive, default=1, help="runs of consecutive seeds, the worst counts (1)"
    )
    three.set_defaults(run=_noise)
    return top


def _model_arguments(command: argparse.ArgumentParser) -> None:
    _size_arguments(command)
    command.add_argument("--sql", metavar="FILE", help="loss query instead of the built-in GPT's")
    command.add_argument("--nanogpt", metavar="FILE", help="the user's own nanoGPT model.py")


def _size_arguments(command: argparse.ArgumentParser) -> None:
    sizes = GPTConfig()
    for name in ("layers", "heads", "width", "context", "vocabulary"):
        default = getattr(sizes, name)
        command.add_argument(f"--{name}", type=_positive, default=default, help=f"({default})")
    command.add_argument("--batch", type=_positive, default=12, help="sequences (12)")
    command.add_argument("--dropout", type=_rate, default=0.2, help="in [0, 1) (0.2)")
    command.add_argument("--seed", type=_seed, default=1337, help="(1337)")
    command.add_argument("--precision", choices=PRECISIONS, default="float32")
    command.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    command.add_argument("--threads", type=_threads, help="CPU threads of PyTorch")
    command.add_argument("--json", metavar="FILE", help="write a record")


def _check(options: argparse.Namespace) -> int:
    config = _config(options)
    if options.transformers:
        _refuse_beside_transformers(options)
        return _check_transformers(options, config)
    recipe = _recipe(options, config)
    batches = _batches(options, config)
    module: GPT | NanoGPT
    source = _model_file(options)
    module = GPT(config) if source is None else NanoGPT(source, config)
    session = build_session(
        recipe,
        _loss_sql(options),
        precision=options.precision,
        device=options.device,
        checkpoint=options.checkpoint,
    )
    result = check(
        session,
        module,
        gpt_mapping(config),
        batches,
        steps=options.steps,
        optimizer=AdamWOptions(recipe.betas, recipe.eps, decay_matrices(0.1)),
        learning_rate=warmup_cosine(recipe.peak, recipe.floor, recipe.warmup, recipe.total),
        clip_norm=recipe.clip_norm,
        precision=options.precision,
        device=options.device,
        before_step=lambda step: module.use_masks(PhiloxMasks(recipe.dropout, recipe.seed, step)),
        follow=options.follow,
        keep_going=options.keep_going,
        on_step=_print_step,
    )
    print(check_table(result))
    print(check_summary(result))
    if options.json is not None:
        write_json(options.json, check_record(result, _settings(options)))
    return PASSED if result.passed else BREACHED


def _print_step(comparisons: tuple[Comparison, ...]) -> None:
    worst = max(comparisons, key=lambda comparison: comparison.excess)
    loss = next(c for c in comparisons if c.quantity == "loss")
    print(
        f"step {worst.step}: loss {loss.difference.actual:.6f}, closest to its tolerance: "
        f"{worst.name}, {worst.excess:.2g} of it",
        file=sys.stderr,
    )


def _refuse_beside_transformers(options: argparse.Namespace) -> None:
    for name in ("nanogpt", "sql", "data", "checkpoint"):
        if getattr(options, name) is not None:
            raise OracleError(
                f"--{name} has no part in --transformers, which checks the built-in model with "
                "fresh weights on synthetic tokens; leave one of the two out"
            )


def _check_transformers(options: argparse.Namespace, config: GPTConfig) -> int:
    batch = next(synthetic_batches(config, options.batch, 1, options.seed))
    found = compare_with_transformers(config, batch, options.seed)
    limit = transformers_limit(config)
    rows = [
        [name, "float64", f"{entry.norm:.1e}", f"{limit:.1e}", _verdict(entry.norm <= limit)]
        for name, entry in found.items()
    ]
    print("reference model against Hugging Face's GPT-2, float64, without dropout")
    print(text_table(["quantity", "precision", "norm error", "tolerance", "verdict"], rows))
    passed = all(entry.norm <= limit for entry in found.values())
    if options.json is not None:
        record = {
            "kind": "transformers",
            "passed": passed,
            "tolerance": limit,
            "norm_errors": {name: entry.norm for name, entry in found.items()},
            "settings": _settings(options),
            "environment": environment(),
        }
        write_json(options.json, record)
    return PASSED if passed else BREACHED


def _bench(options: argparse.Namespace) -> int:
    config = _config(options)
    recipe = _recipe(options, config)
    native = TrainingRecipe(
        config=config,
        precision=precision_policy(options.precision),
        device=options.device,
        dropout=options.dropout,
        seed=options.seed,
    )
    source = _model_file(options)
    if source is not None:
        # A contender that cannot be set up is left out; a file that was asked for must be right.
        build_model(source, config)
    contenders: list[Contender] = []
    if not options.no_sql:
        loss_sql = _loss_sql(options)

        def session(compiled: bool) -> SessionContender:
            return SessionContender(
                "SQL compiled" if compiled else "SQL eager",
                lambda: build_session(
                    recipe,
                    loss_sql,
                    precision=options.precision,
                    device=options.device,
                    compiled=compiled,
                ),
            )

        ours = [session(compiled) for compiled in _kinds(options)]
        contenders += ours
        if options.device.startswith("cuda"):
            same = ours[-1]
            contenders.append(
                SessionContender(f"{same.name}, uploads", lambda: same.session, staged=False)
            )
    contenders += native_contenders(native, compiled=not options.no_compile, nanogpt=source)
    names = [contender.name for contender in contenders]
    if options.baseline is not None and options.baseline not in names:
        raise OracleError(
            f"no contender {options.baseline!r} is timed; there are {', '.join(names)}"
        )
    settings = BenchSettings(
        config=config,
        batch_size=options.batch,
        precision=options.precision,
        device=options.device,
        rounds=options.rounds,
        block=options.block,
        seed=options.seed,
    )
    result = bench(contenders, settings, progress=lambda text: print(text, file=sys.stderr))
    baseline = options.baseline or _strongest(result.timings)
    print(bench_table(result, baseline))
    if options.json is not None:
        write_json(options.json, bench_record(result, baseline, _settings(options)))
    return PASSED


def _kinds(options: argparse.Namespace) -> tuple[bool, ...]:
    return (False,) if options.no_compile else (False, True)


def _strongest(timings: Sequence[Any]) -> str:
    """The fastest native contender, or the fastest of all when there is none."""
    native = [timing for timing in timings if timing.name.startswith("native")]
    return str(min(native or timings, key=lambda timing: timing.median).name)


def _noise(options: argparse.Namespace) -> int:
    config = _config(options)
    found = largest(
        measure_noise_floor(
            config,
            options.precision,
            batch_size=options.batch,
            steps=options.steps,
            dropout=options.dropout,
            seed=options.seed + number,
            device=options.device,
        )
        for number in range(options.seeds)
    )
    rows = [
        [quantity, found.precision, f"{floor.norm:.1e}", f"{floor.entry:.1e}"]
        for quantity, floor in found.floors.items()
    ]
    print(f"noise on {found.device}, {config.parameters:,} parameters, {found.steps} steps")
    print(text_table(["quantity", "precision", "norm error", "entry error"], rows))
    if options.json is not None:
        record = {
            "kind": "noise",
            "device": found.device,
            "floors": {
                quantity: {"norm": floor.norm, "entry": floor.entry}
                for quantity, floor in found.floors.items()
            },
            "settings": _settings(options),
            "environment": environment(),
        }
        write_json(options.json, record)
    return PASSED


def _config(options: argparse.Namespace) -> GPTConfig:
    if options.device == "cuda" and not torch.cuda.is_available():
        raise OracleError("no CUDA device is available; use --device cpu")
    sizes = (options.layers, options.heads, options.width, options.context, options.vocabulary)
    config = GPTConfig(*sizes)
    # Blocks are made one by one, so that too many would take all memory before one fails.
    if 4 * config.parameters > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        raise OracleError(f"{config.parameters:,} parameters: {_NO_MEMORY}")
    return config


def _recipe(options: argparse.Namespace, config: GPTConfig) -> Recipe:
    recipe = Recipe(config)
    return replace(recipe, batch_size=options.batch, dropout=options.dropout, seed=options.seed)


def _model_file(options: argparse.Namespace) -> ModuleType | None:
    return None if options.nanogpt is None else load_model_file(options.nanogpt)


def _loss_sql(options: argparse.Namespace) -> LossSQL:
    return default_loss_sql() if options.sql is None else read_sql(options.sql)


def _batches(options: argparse.Namespace, config: GPTConfig) -> Iterator[Batch]:
    if options.data is None:
        return iter(synthetic_batches(config, options.batch, options.steps, options.seed))
    return text_batches(options.data, config, options.batch, options.seed)


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """The command's options, without file paths, which mean nothing elsewhere."""
    hidden = {"run", "json", "data", "nanogpt", "sql", "checkpoint"}
    found = {name: value for name, value in vars(options).items() if name not in hidden}
    for name in ("data", "nanogpt", "sql", "checkpoint"):
        value = getattr(options, name, None)
        if value is not None:
            found[name] = Path(value).name
    return found


def _verdict(passed: bool) -> str:
    return "pass" if passed else "BREACH"


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    print(f"sql-oracle: warning: {message}", file=sys.stderr)


#: Of every size and count; numpy's and torch's own limits come later and are not as clear.
_LARGEST = 2**62
#: More threads than any processor has, and few enough for a process.
_MOST_THREADS = 4096


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _positive(text: str) -> int:
    value = _whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    if value > _LARGEST:
        raise argparse.ArgumentTypeError(f"{text} is not at most {_LARGEST:,}")
    return value


def _threads(text: str) -> int:
    value = _positive(text)
    if value > _MOST_THREADS:
        raise argparse.ArgumentTypeError(f"{text} is not at most {_MOST_THREADS:,}")
    return value


def _seed(text: str) -> int:
    value = _whole(text)
    if not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{text} is not in [0, 2^63)")
    return value


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0.0 <= value < 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not in [0, 1)")
    return value

"""A check's result as a table to read and as JSON to keep."""

import json
import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sql_oracle.check import CheckResult, Comparison
from sql_oracle.errors import UnwritableFile
from sql_oracle.tolerances import FACTOR, Tolerance

#: Up to this many steps have a column each; longer checks show the worst step.
STEP_COLUMNS = 6


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns padded to their widest cell; the first two to the left, the others to the right."""
    body = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in body) for i in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in body
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def check_table(result: CheckResult) -> str:
    """One row for each quantity and tensor: errors by step, tolerance, verdict."""
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for comparison in result.comparisons:
        groups.setdefault((comparison.quantity, comparison.tensor), []).append(comparison)
    steps = sorted({comparison.step for comparison in result.comparisons})
    by_step = len(steps) <= STEP_COLUMNS
    header = ["quantity", "tensor"]
    header += [f"step {step}" for step in steps] if by_step else ["worst", "at step"]
    header += ["tolerance", "entry", "tolerance", "verdict"]
    rows = []
    for (quantity, tensor), members in groups.items():
        worst = max(members, key=lambda comparison: comparison.difference.norm)
        if by_step:
            found = {member.step: f"{member.difference.norm:.1e}" for member in members}
            cells = [found.get(step, "") for step in steps]
        else:
            cells = [f"{worst.difference.norm:.1e}", str(worst.step)]
        entry = max(member.difference.entry for member in members)
        verdict = "pass" if all(member.passed for member in members) else "BREACH"
        limit = members[0].limit
        rows.append(
            [
                quantity,
                tensor,
                *cells,
                f"{limit.norm:.1e}",
                f"{entry:.1e}",
                f"{limit.entry:.1e}",
                verdict,
            ]
        )
    return text_table(header, rows)


def check_summary(result: CheckResult) -> str:
    """What was compared, on what grounds, and the verdict with the first breach."""
    lines = [
        f"{result.precision} on {result.device}: {result.parameters:,} parameters, "
        f"{result.steps} of {result.planned_steps} steps compared",
        tolerance_note(result.tolerance),
    ]
    breach = result.first_breach
    if breach is None:
        worst = max(result.comparisons, key=lambda comparison: comparison.excess)
        lines.append(
            f"PASS: {len(result.comparisons)} comparisons; the closest to its tolerance is "
            f"{worst.name} at step {worst.step}, {worst.excess:.2g} of it"
        )
        return "\n".join(lines)
    lines.append(f"FAIL: {breach.describe()}")
    worst = max(result.breaches, key=lambda comparison: comparison.excess)
    lines.append(f"{len(result.breaches)} breaches; furthest beyond its tolerance: {worst.name}")
    return "\n".join(lines)


def tolerance_note(tolerance: Tolerance) -> str:
    """Where the tolerance comes from."""
    row = tolerance.floor
    if row is None:
        return "tolerances: the caller's own"
    config = row.config
    return (
        f"tolerances: noise of PyTorch against itself in {row.precision} on {row.device} "
        f"({config.layers} layers, width {config.width}, context {config.context}, batch "
        f"{row.batch_size}, {row.steps} steps) times {FACTOR:g}"
    )


def environment() -> dict[str, Any]:
    """Versions and hardware that a record needs to be read later."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def check_record(result: CheckResult, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A JSON-ready record of a check; ``settings`` say how it was asked for."""
    row = result.tolerance.floor
    breach = result.first_breach
    return {
        "kind": "check",
        "passed": result.passed,
        "precision": result.precision,
        "device": result.device,
        "parameters": result.parameters,
        "steps": result.steps,
        "planned_steps": result.planned_steps,
        "first_breach": None if breach is None else breach.describe(),
        "tolerance": {
            quantity: {"norm": limit.norm, "entry": limit.entry}
            for quantity, limit in result.tolerance.limits.items()
        },
        "noise_floor": None
        if row is None
        else {
            "device": row.device,
            "steps": row.steps,
            "parameters": row.config.parameters,
            "floors": {
                quantity: {"norm": floor.norm, "entry": floor.entry}
                for quantity, floor in row.floors.items()
            },
        },
        "settings": dict(settings or {}),
        "environment": environment(),
        "comparisons": [_comparison_record(comparison) for comparison in result.comparisons],
    }


def _comparison_record(comparison: Comparison) -> dict[str, Any]:
    found = comparison.difference
    return {
        "step": comparison.step,
        "quantity": comparison.quantity,
        "tensor": comparison.tensor,
        "norm_error": found.norm,
        "entry_error": found.entry,
        "index": list(found.index),
        "session": found.actual,
        "pytorch": found.expected,
        "passed": comparison.passed,
    }


def write_json(path: str | Path, record: Mapping[str, Any]) -> None:
    """Write a record; numbers that JSON lacks (infinities, NaN) become strings.

    Raises:
        UnwritableFile: the file cannot be written.
    """
    text = json.dumps(_plain(record), indent=1, allow_nan=False) + "\n"
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error) from error


def check_writable(path: str | Path) -> None:
    """Find out before long work whether a record can be written; leaves the place as it was.

    Raises:
        UnwritableFile: it cannot.
    """
    target = Path(path)
    # os.path, other than Path, takes a name that is too long for one that is not there.
    new = not os.path.exists(target)
    try:
        target.open("a").close()
        if new:
            target.unlink()
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: str | Path, error: OSError) -> UnwritableFile:
    return UnwritableFile(f"cannot write the record {str(path)!r}: {error.strerror}")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value

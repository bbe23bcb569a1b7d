"""Measures of how far an array is from the one it should be."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sql_oracle.errors import StateMismatch
from sql_oracle.protocols import Array

Wide = npt.NDArray[np.float64]
_PART = 1 << 14


@dataclass(frozen=True, slots=True)
class Difference:
    """How far an array is from its reference.

    Attributes:
        norm: Euclidean norm of the difference over the reference's norm. 0 when both are all
            zero, infinite when only the reference is, or when a value is not finite.
        entry: largest ``|a - b| / (|b| + rms(b))``. One wrong entry of a large array hardly moves
            the norm; here it stands out. ``rms`` keeps entries near zero from dominating.
        index: position of that entry.
        actual: value there.
        expected: reference value there.
    """

    norm: float
    entry: float
    index: tuple[int, ...]
    actual: float
    expected: float


def difference(actual: Array | float, expected: Array | float) -> Difference:
    """Compare in float64.

    Raises:
        StateMismatch: the shapes differ.
    """
    a, b = np.asarray(actual), np.asarray(expected)
    if a.shape != b.shape:
        raise StateMismatch(f"an array of shape {a.shape} cannot be compared with one of {b.shape}")
    if a.size == 0:
        return Difference(0.0, 0.0, (), 0.0, 0.0)
    left, right = a.reshape(-1), b.reshape(-1)
    total, reference = _norms(left, right)
    entry, position = _worst_entry(left, right, reference / math.sqrt(b.size))
    if math.isfinite(total) and reference > 0:
        norm = total / reference
    else:
        norm = 0.0 if total == 0 else math.inf
    return Difference(
        norm=norm,
        entry=entry,
        index=tuple(int(i) for i in np.unravel_index(position, a.shape)),
        actual=float(left[position]),
        expected=float(right[position]),
    )


def _norms(a: Array, b: Array) -> tuple[float, float]:
    """Euclidean norms of the difference (infinite if it is not finite anywhere) and of b."""
    gaps, references = 0.0, 0.0
    with np.errstate(over="ignore"):
        for _, gap, wide in _parts(a, b):
            # Not numpy's norm: its threads wait for each other at every part.
            gaps += float(np.square(gap).sum())
            references += float(np.square(wide).sum())
    return math.sqrt(gaps), math.sqrt(references)


def _worst_entry(a: Array, b: Array, rms: float) -> tuple[float, int]:
    """Largest difference over magnitude plus ``rms``, and its position."""
    worst, position = -1.0, 0
    for start, gap, wide in _parts(a, b):
        scale = np.abs(wide) + rms
        # A gap where the reference is zero everywhere has no scale: it counts as infinite.
        relative = np.where(gap > 0, np.inf, 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            np.divide(gap, scale, out=relative, where=scale > 0)
        relative = np.nan_to_num(relative, nan=np.inf, posinf=np.inf)
        highest = int(np.argmax(relative))
        if relative[highest] > worst:
            worst, position = float(relative[highest]), start + highest
    return worst, position


def _parts(a: Array, b: Array) -> Iterator[tuple[int, Wide, Wide]]:
    """Start, absolute difference (infinite where it is NaN) and b, part by part in float64.

    Parts stay in a core's cache: whole arrays of ten million values took twenty times as long.
    """
    for start in range(0, a.size, _PART):
        wide = b[start : start + _PART].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            gap = np.abs(a[start : start + _PART] - wide)
        if not np.isfinite(gap).all():
            gap = np.nan_to_num(gap, nan=np.inf, posinf=np.inf)
        yield start, gap, wide

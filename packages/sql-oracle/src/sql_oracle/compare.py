"""Measures of how far an array is from the one it should be."""

from dataclasses import dataclass

import numpy as np

from sql_oracle.errors import StateMismatch
from sql_oracle.protocols import Array


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
    a = np.asarray(actual, dtype=np.float64)
    b = np.asarray(expected, dtype=np.float64)
    if a.shape != b.shape:
        raise StateMismatch(f"an array of shape {a.shape} cannot be compared with one of {b.shape}")
    if a.size == 0:
        return Difference(0.0, 0.0, (), 0.0, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        gap = np.nan_to_num(np.abs(a - b), nan=np.inf, posinf=np.inf)
        reference = float(np.linalg.norm(b.ravel()))
        scale = np.abs(b) + reference / np.sqrt(b.size)
        # A gap where the reference is zero everywhere has no scale: it counts as infinite.
        without_scale = np.where(gap > 0, np.inf, 0.0)
        relative = np.divide(gap, scale, out=without_scale, where=scale > 0)
        relative = np.nan_to_num(relative, nan=np.inf, posinf=np.inf)
        total = float(np.linalg.norm(gap.ravel()))
    position = int(np.argmax(relative))
    index = tuple(int(i) for i in np.unravel_index(position, a.shape))
    if np.isfinite(total) and reference > 0:
        norm = total / reference
    else:
        norm = 0.0 if total == 0 else float("inf")
    return Difference(
        norm=norm,
        entry=float(relative.ravel()[position]),
        index=index,
        actual=float(a[index]),
        expected=float(b[index]),
    )

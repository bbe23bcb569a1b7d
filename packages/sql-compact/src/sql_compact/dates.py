"""Dates and durations in nanoseconds, the unit that SQL's timestamps have here."""

from __future__ import annotations

import numpy as np

from .errors import DomainError


def nanoseconds(values: np.ndarray, where: str) -> np.ndarray:
    """Dates or durations in nanoseconds.

    Args:
        values: datetime64 or timedelta64 of any unit and shape.
        where: what an error names.

    Raises:
        DomainError: one does not fit. Numpy raises or wraps, depending on its version.
    """
    kind = "timedelta64" if values.dtype.kind == "m" else "datetime64"
    try:
        converted = values.astype(f"{kind}[ns]")
        fits = bool(((converted.astype(values.dtype) == values) | np.isnat(values)).all())
    except OverflowError:
        fits = False
    if not fits:
        what = "dates outside 1678 to 2262" if kind == "datetime64" else "durations over 292 years"
        raise DomainError(f"{where}: {what} do not fit SQL's nanoseconds")
    return converted

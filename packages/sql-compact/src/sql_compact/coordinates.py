"""Coordinate values and other text and dates as SQL has them: distinct values and codes.

Calendars follow xarray-sql: dates of a calendar that is nearly Gregorian become timestamps,
those of the 360-day and Julian calendars numbers in CF units.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .dates import nanoseconds
from .domain import Domain, Explicit, Range, domain_of
from .errors import DomainError, DTypeError
from .tables import KeyColumn

#: CF calendars whose dates are taken as Gregorian ones.
_GREGORIAN = frozenset(
    {
        "standard",
        "gregorian",
        "proleptic_gregorian",
        "noleap",
        "365_day",
        "all_leap",
        "366_day",
    }
)
_DEFAULT_UNITS = "microseconds since 1970-01-01T00:00:00"


def coordinate(
    values: np.ndarray, where: str, nan_is_null: bool = False
) -> tuple[Domain, KeyColumn | None]:
    """The domain of a dim with these (converted) coordinate values.

    Missing (NaT, None, NaN where that means missing) or repeated values are no domain: then
    positions are, and the second result says which value each has.

    Raises:
        DomainError: a value is NaN; ``where`` names the dim.
        DTypeError: values of a type that SQL does not have.
    """
    codes, distinct = factorize(values, where)
    if not nan_is_null and values.dtype.kind == "f" and np.isnan(values).any():
        raise DomainError(
            f"{where}: a coordinate value is NaN; drop or fill it before registering, or "
            "register with nan_is_null=True to make it NULL"
        )
    if len(distinct) == len(values) and not (codes < 0).any():
        return domain_of(values, where), None
    return Range(len(values)), KeyColumn(Explicit(codes), Explicit(distinct))


def factorize(values: np.ndarray, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Codes of the same shape and the distinct values in order; missing values have code -1.

    Signed zeros are two values, as in SQL's keys.

    Raises:
        DTypeError: values of a type that SQL does not have.
    """
    import pandas as pd

    kind = values.dtype.kind
    if kind == "f":
        whole = np.ascontiguousarray(values)
        bits = whole.reshape(-1).view(f"i{whole.dtype.itemsize}")
        found, inverse = np.unique(bits, return_inverse=True)
        distinct = found.view(whole.dtype)
        order = np.argsort(distinct, kind="stable")
        order = order[~np.isnan(distinct[order])]
        rank = np.full(len(distinct), -1, dtype=np.int64)
        rank[order] = np.arange(len(order))
        return rank[inverse].reshape(values.shape), distinct[order]
    if kind in "iub":
        distinct, inverse = np.unique(values, return_inverse=True)
        return inverse.reshape(values.shape).astype(np.int64), distinct
    if kind in "mM":
        values = nanoseconds(values, where)
    elif kind not in "UOT":
        raise DTypeError(f"{where}: values of type {values.dtype} have no SQL type")
    flat = values.reshape(-1)
    try:
        codes, distinct = pd.factorize(flat.astype(object) if kind in "UT" else flat, sort=True)
    except TypeError as error:
        raise DTypeError(f"{where}: values of several types cannot be one SQL column") from error
    distinct = np.asarray(distinct, dtype=values.dtype if kind in "mM" else object)
    for value in distinct[:1] if kind in "UOT" else ():
        if not isinstance(value, str):
            hint = ""
            if hasattr(value, "year"):
                hint = "; for dates use np.array(values, dtype='datetime64[ns]'), in UTC"
            kind = type(value).__name__
            raise DTypeError(f"{where}: values of type {kind} have no SQL type{hint}")
    return codes.reshape(values.shape).astype(np.int64), distinct


def is_cftime(values: np.ndarray) -> bool:
    """Whether values are dates of the cftime package."""
    if values.dtype.kind != "O" or values.size == 0:
        return False
    return type(values.reshape(-1)[0]).__module__.split(".")[0] == "cftime"


def converted(values: np.ndarray, encoding: Mapping[Any, Any], where: str) -> np.ndarray:
    """Values with dates of the cftime package as SQL has them; others as they are.

    Raises:
        DomainError: a date has no Gregorian counterpart.
    """
    if not is_cftime(values):
        return values
    flat = values.reshape(-1)
    calendar = flat[0].calendar
    if calendar not in _GREGORIAN:
        import cftime

        units = encoding.get("units", _DEFAULT_UNITS)
        numbers = np.asarray(cftime.date2num(flat, units, calendar))
        return numbers.reshape(values.shape)
    try:
        stamps = np.array([v.isoformat() for v in flat], dtype="datetime64[us]")
    except ValueError as error:
        raise DomainError(
            f"{where}: a date of calendar {calendar!r} has no Gregorian counterpart: {error}"
        ) from error
    return nanoseconds(stamps, where).reshape(values.shape)

"""Values between numpy and Arrow, and what stands for a missing one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from .domain import Domain, Range


def with_missing(values: np.ndarray, shown: np.ndarray | None) -> np.ndarray:
    """Values with NaN (or NaT, or None) where nothing is shown."""
    if shown is None or shown.all():
        return np.array(values)
    if values.dtype.kind == "f":
        return np.where(shown, values, np.array(np.nan, dtype=values.dtype))
    if values.dtype.kind in "mM":
        return np.where(shown, values, np.array("NaT", dtype=values.dtype))
    if values.dtype.kind in "iu":
        return np.where(shown, values.astype(np.float64), np.nan)
    return np.where(shown, values.astype(object), None)


def arrow_type(domain: Domain) -> pa.DataType:
    """The Arrow type of a domain's values."""
    if isinstance(domain, Range):
        return domain.dtype.arrow
    kind = domain.array.dtype.kind
    if kind in "UOT":
        return pa.string()
    if kind == "M":
        return pa.timestamp("ns")
    if kind == "m":
        return pa.duration("ns")
    return pa.from_numpy_dtype(domain.array.dtype)


def arrow_array(values: np.ndarray, mask: np.ndarray | None, kind: pa.DataType) -> pa.Array:
    """Values as an Arrow array of a type; NULL where the mask holds."""
    values = np.ascontiguousarray(values)
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    if pa.types.is_null(kind):
        return pa.nulls(len(values))
    if values.dtype.kind in "UOT":
        if mask is not None:
            values = np.where(mask, None, values.astype(object))
        array = pa.array(values.tolist(), type=kind)
    else:
        array = pa.array(values, mask=mask).cast(kind)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def numpy_of_arrow(column: pa.ChunkedArray | pa.Array) -> tuple[np.ndarray, np.ndarray | None]:
    """Values as numpy, with anything in place of NULL, and where they are not NULL."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    valid = None if column.null_count == 0 else column.is_valid().to_numpy(zero_copy_only=False)
    kind = column.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("ns", tz=getattr(kind, "tz", None)))
        return column.cast(pa.int64()).fill_null(0).to_numpy().astype("datetime64[ns]"), valid
    if pa.types.is_duration(kind):
        column = column.cast(pa.duration("ns")).cast(pa.int64())
        return column.fill_null(0).to_numpy().astype("timedelta64[ns]"), valid
    if pa.types.is_boolean(kind):
        return column.fill_null(False).to_numpy(zero_copy_only=False), valid
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return column.fill_null(pa.scalar(0, kind)).to_numpy(zero_copy_only=False), valid
    return np.array([*column.to_pylist(), None], dtype=object)[:-1], valid

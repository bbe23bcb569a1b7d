"""Element types: what a column holds in SQL, and what a tensor holds here.

SQL types arrive from Substrait plans and Arrow schemas. A tensor has one of the
same numeric types; dates, times and text exist only as domains (coordinate
values), never as tensor elements.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
import pyarrow as pa


class DType(Enum):
    """Element type of a tensor; the value is the numpy name."""

    BOOL = "bool"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    FLOAT32 = "float32"
    FLOAT64 = "float64"

    @property
    def is_float(self) -> bool:
        return self in (DType.FLOAT32, DType.FLOAT64)

    @property
    def is_bool(self) -> bool:
        return self is DType.BOOL

    @property
    def is_integer(self) -> bool:
        return not self.is_float and not self.is_bool

    @property
    def numpy(self) -> np.dtype:
        return np.dtype(self.value)

    @property
    def arrow(self) -> pa.DataType:
        return pa.from_numpy_dtype(self.numpy)


def dtype_of_numpy(dtype: np.dtype) -> DType | None:
    """The tensor element type of a numpy dtype; None for text, dates and objects."""
    try:
        return DType(np.dtype(dtype).name)
    except ValueError:
        return DType.FLOAT32 if np.dtype(dtype) == np.float16 else None


def dtype_of_arrow(kind: pa.DataType) -> DType | None:
    """The tensor element type of an Arrow type; None for text, dates and nested types."""
    if pa.types.is_boolean(kind):
        return DType.BOOL
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return dtype_of_numpy(np.dtype(kind.to_pandas_dtype()))
    return None

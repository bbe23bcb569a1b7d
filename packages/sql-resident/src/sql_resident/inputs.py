"""What a session takes besides weights: batch inputs and hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sql_compact import CompactTable, DType, ShapeError, ValueColumn, table_of_array

from .errors import SessionError


@dataclass(frozen=True, slots=True)
class BatchInput:
    """An input table that is new at every step.

    Attributes:
        dims: its key columns; each has coordinates 0..size-1.
        shape: size of each dim.
        column: name of its value column.
        domain: values are integers 0..domain-1; None: floats.
    """

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    column: str = "val"
    domain: int | None = None

    def layout(self, name: str) -> CompactTable:
        """The table's layout."""
        like = np.broadcast_to(np.zeros((), np.int64 if self.domain else np.float64), self.shape)
        return table_of_array(name, like, self.dims, self.column, self.domain, None)


#: Columns of ``hyper`` that the session itself provides.
OWN_HYPER: Mapping[str, DType] = {
    "step": DType.INT64,
    "seed": DType.INT64,
    "lr": DType.FLOAT64,
}


def hyper_layout(extra: Mapping[str, float]) -> CompactTable:
    """The one-row table ``hyper``: step, seed, lr, and the user's scalars.

    Raises:
        SessionError: a scalar has the name of one of the session's own.
    """
    for name in extra:
        if name in OWN_HYPER:
            raise SessionError(f"hyper: {name!r} is set by the session; choose another name")
    columns = {**OWN_HYPER, **dict.fromkeys(extra, DType.FLOAT64)}
    return CompactTable(
        "hyper", {}, tuple(ValueColumn(name, (), (), dtype) for name, dtype in columns.items())
    )


def checked_batch(
    layouts: Mapping[str, CompactTable], batch: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """The batch as CPU tensors by ``table.column``, checked before anything runs.

    Raises:
        SessionError: an input is missing or unknown.
        ShapeError, DTypeError, DomainError: an array does not fit; a value outside its
            domain is named with its coordinates.
    """
    missing = [name for name in layouts if name not in batch]
    unknown = [name for name in batch if name not in layouts]
    if missing or unknown:
        raise SessionError(
            f"batch: missing {missing or 'nothing'}, unknown {unknown or 'nothing'}; "
            f"the session takes {list(layouts)}"
        )
    checked = {}
    for name, layout in layouts.items():
        column = layout.columns[0]
        tensor = layout.check(column, batch[name], torch.device("cpu"))
        if tensor.dtype.is_floating_point and not bool(torch.isfinite(tensor).all()):
            raise ShapeError(f"batch: table {name!r}, column {column.name!r} is not finite")
        checked[layout.input_name(column)] = tensor
    return checked

"""What a session takes besides weights: batch inputs and hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sql_compact import (
    CompactTable,
    DomainError,
    DType,
    ShapeError,
    ValueColumn,
    table_of_array,
)

from .arguments import check_name, checked_array, dims_of, kind, real
from .errors import SessionError
from .optimizers import Optimizer


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
        """The table's layout.

        Raises:
            SessionError: names or sizes are of the wrong kind, or a size or the domain is not
                positive.
            ShapeError: the dims are not those of the shape, or names repeat.
        """
        check_name("batch", name)
        if isinstance(self.dims, str) or not isinstance(self.dims, Sequence):
            raise SessionError(f"batch: table {name!r}: dims is {self.dims!r}; use ('b', 't')")
        if not isinstance(self.shape, Sequence):
            raise SessionError(f"batch: table {name!r}: shape is {self.shape!r}; use (8, 3)")
        for column in (*self.dims, self.column):
            check_name(f"batch: table {name!r}: columns", column)
        for size in (*self.shape, *(() if self.domain is None else (self.domain,))):
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise SessionError(
                    f"batch: table {name!r}: sizes and domain must be whole numbers of at least "
                    f"1, not {size!r}"
                )
        like = np.zeros((), np.int64 if self.domain else np.float64)
        like = np.broadcast_to(like, tuple(self.shape))
        return table_of_array(name, like, tuple(self.dims), self.column, self.domain, None)


#: Columns of ``hyper`` that the session itself provides.
OWN_HYPER: Mapping[str, DType] = {
    "step": DType.INT64,
    "seed": DType.INT64,
    "lr": DType.FLOAT64,
}


def hyper_layout(extra: Iterable[str]) -> CompactTable:
    """The one-row table ``hyper``: step, seed, lr, and the user's scalars."""
    columns = {**OWN_HYPER, **dict.fromkeys(extra, DType.FLOAT64)}
    return CompactTable(
        "hyper", {}, tuple(ValueColumn(name, (), (), dtype) for name, dtype in columns.items())
    )


def checked_batch(
    layouts: Mapping[str, CompactTable], batch: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """The batch as CPU tensors by ``table.column``, checked before anything runs.

    Raises:
        SessionError: an input is missing, unknown or no array.
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
        where = f"table {name!r}, column {column.name!r}"
        array = checked_array(where, batch[name])
        _check_dims(where, layout, array)
        tensor = layout.check(column, array, torch.device("cpu"))
        if tensor.dtype.is_floating_point:
            _check_finite(layout, column, tensor)
        checked[layout.input_name(column)] = tensor
    return checked


def _check_dims(where: str, layout: CompactTable, array: Any) -> None:
    """Refuse a DataArray of other dims: by position, a transposed one would be taken as it is."""
    given = dims_of(array)
    if given is not None and given != tuple(layout.dims):
        raise ShapeError(
            f"{where}: the DataArray has the dims {given}, the table {tuple(layout.dims)}; "
            "transpose or rename them"
        )


def _check_finite(layout: CompactTable, column: ValueColumn, tensor: torch.Tensor) -> None:
    outside = ~torch.isfinite(tensor)
    if bool(outside.any()):
        at = tuple(int(i) for i in outside.nonzero()[0])
        place = ", ".join(f"{d}={i}" for d, i in zip(column.dims, at, strict=True))
        raise DomainError(
            f"table {layout.name!r}, column {column.name!r}: value {float(tensor[at])} at "
            f"({place}) is not finite"
        )


def checked_hyper(hyper: Mapping[str, Any], known: Sequence[str] | None) -> dict[str, float]:
    """The user's scalars as floats.

    Args:
        known: the names there are; None: any that are not the session's own.

    Raises:
        SessionError: a name is unknown or the session's own, or a value is no finite number.
    """
    if not isinstance(hyper, Mapping):
        raise SessionError(f"hyper is a {kind(hyper)}; it must map names to numbers")
    checked = {}
    for name, value in hyper.items():
        check_name("hyper", name)
        if name in OWN_HYPER:
            raise SessionError(f"hyper: {name!r} is set by the session; choose another name")
        if known is not None and name not in known:
            raise SessionError(f"hyper: there is no {name!r}; the session has {list(known)}")
        found = real(value)
        if found is None:
            raise SessionError(f"hyper: {name} is {value!r}; it must be a number")
        if not math.isfinite(found):
            raise SessionError(f"hyper: {name} is {value!r}; it must be finite")
        checked[name] = found
    return checked


def checked_seed(seed: int) -> int:
    """The seed.

    Raises:
        SessionError: it is not an integer from 0 to 2**63 - 1.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise SessionError(f"seed is {seed!r}; it must be an integer from 0 to 2**63 - 1")
    return seed


def hyper_inputs(
    step: int, seed: int, learning_rate: float, extra: Mapping[str, float]
) -> dict[str, torch.Tensor]:
    """The row of ``hyper`` as CPU tensors by input name."""
    inputs = {"hyper.step": _scalar(step, np.int64), "hyper.seed": _scalar(seed, np.int64)}
    for name, value in {"lr": learning_rate, **extra}.items():
        inputs[f"hyper.{name}"] = _scalar(value, np.float64)
    return inputs


def _scalar(value: float, element: type[np.generic]) -> torch.Tensor:
    """A number as a tensor; made by numpy, which is several times quicker at it."""
    return torch.from_numpy(np.array(value, dtype=element))


def check_options(
    batch: Mapping[str, Any],
    optimizer: Any,
    clip_norm: float | None,
    compiled: bool | None,
    on_non_finite: str,
    ema_decay: float | None,
) -> None:
    """Refuse options of the wrong kind or outside their range.

    Raises:
        SessionError: naming the option.
    """
    if not isinstance(batch, Mapping):
        raise SessionError(f"batch is a {kind(batch)}; it must map table names to BatchInput")
    for name, given in batch.items():
        if not isinstance(given, BatchInput):
            raise SessionError(
                f"batch: table {name!r} is a {kind(given)}; describe it by a BatchInput(dims, "
                "shape), and pass its arrays to step"
            )
    if isinstance(optimizer, type) or not isinstance(optimizer, Optimizer):
        what = optimizer.__name__ if isinstance(optimizer, type) else repr(optimizer)
        raise SessionError(f"optimizer is {what}; it must be an optimizer such as AdamW()")
    if not isinstance(compiled, bool | None):
        raise SessionError(f"compile is {compiled!r}; use True, False, or None for CUDA only")
    if not isinstance(on_non_finite, str) or on_non_finite not in ("raise", "skip"):
        raise SessionError(f"on_non_finite is {on_non_finite!r}; use 'raise' or 'skip'")
    if clip_norm is not None and not 0 < _number(clip_norm) < math.inf:
        raise SessionError(f"clip_norm is {clip_norm!r}; it must be above 0 and finite, or None")
    if ema_decay is not None and not 0 <= _number(ema_decay) < 1:
        raise SessionError(f"ema_decay is {ema_decay!r}; it must be at least 0 and below 1")


def _number(value: Any) -> float:
    """The value as a float; NaN, which no range has, if it is none."""
    found = real(value)
    return math.nan if found is None else found


def checked_device(device: str | torch.device) -> torch.device:
    """The device.

    Raises:
        SessionError: it is neither the CPU nor a CUDA device that is there.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise SessionError(f"device is {device!r}; use 'cpu', 'cuda' or 'cuda:N'")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise SessionError(
            f"device is {device!r}; torch finds {torch.cuda.device_count()} CUDA devices here. "
            "Use 'cpu', or install a driver and a CUDA build of torch"
        )
    return found


def check_is_batch(batch: Any) -> None:
    """Refuse what is no batch.

    Raises:
        SessionError: it is not a mapping.
    """
    if not isinstance(batch, Mapping):
        raise SessionError(
            f"batch is a {kind(batch)}; it must map table names to arrays, or be a list of such "
            "micro-batches"
        )

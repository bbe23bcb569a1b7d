"""Layouts of a session's state: which arrays it has, and what they start from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sql_compact import CompactTable, DTypeError, Precision, ShapeError, table_of_array

from .arguments import check_name, checked_array, dims_of, kind
from .errors import SessionError
from .optimizers import ParameterTable

if TYPE_CHECKING:
    import xarray as xr

#: Slot of the moving average of the weights.
EMA_SLOT = "ema"


@dataclass(frozen=True, slots=True)
class StateLayout:
    """Every state array of a session.

    Attributes:
        tables: the parameter tables, as optimizers see them.
        arrays: layout of every array by slot name: ``w``, ``w.m`` ...; the layout's own name
            is that of the array's table in SQL, ``w_m``.
        slots: slot names (``m`` ...) of each parameter, in order.
    """

    tables: tuple[ParameterTable, ...]
    arrays: Mapping[str, CompactTable]
    slots: tuple[str, ...]

    def names(self) -> list[tuple[str, str]]:
        """Of every array, its slot name and the name of the statement that gives the next one."""
        return [
            (f"{table.name}.{slot}" if slot else table.name, table.next(slot))
            for table in self.tables
            for slot in (None, *self.slots)
        ]

    def weight_slots(self, ema: bool) -> dict[str, str]:
        """Slot name of every parameter's weights, or of their averages.

        Raises:
            SessionError: there are no averages.
        """
        if ema and EMA_SLOT not in self.slots:
            raise SessionError("ema: the session keeps no average; give it ema_decay=0.999")
        return {t.name: f"{t.name}.{EMA_SLOT}" if ema else t.name for t in self.tables}

    def input(self, name: str) -> str:
        """Name of a state array among a program's inputs."""
        return f"{self.arrays[name].name}.val"


def state_layout(
    parameters: Mapping[str, xr.DataArray], slots: Sequence[str], other_tables: Sequence[str]
) -> StateLayout:
    """The layout of a session's state.

    Args:
        other_tables: names that are taken: batch inputs and ``hyper``.

    Raises:
        SessionError, DTypeError, ShapeError, DomainError: a parameter is no table of floats,
            or two tables have one name.
    """
    if not isinstance(parameters, Mapping):
        raise SessionError(
            f"parameters is a {kind(parameters)}; it must map table names to DataArrays"
        )
    if not parameters:
        raise SessionError("a session needs at least one parameter table")
    arrays: dict[str, CompactTable] = {}
    tables = []
    for name, array in parameters.items():
        check_name("parameters", name)
        if "." in name:
            # Arrays of the state are called table.slot.
            raise SessionError(f"parameter {name!r}: a name has no dot; rename it")
        layout = parameter_layout(name, array)
        table = ParameterTable(name, tuple(layout.dims))
        tables.append(table)
        arrays[name] = layout
        for slot in slots:
            arrays[f"{name}.{slot}"] = replace(layout, name=table.slot(slot))
    taken = list(other_tables)
    for layout in arrays.values():
        if layout.name in taken:
            raise SessionError(f"two tables are called {layout.name!r}; rename one")
        taken.append(layout.name)
    return StateLayout(tuple(tables), arrays, tuple(slots))


def parameter_layout(name: str, array: xr.DataArray) -> CompactTable:
    """The layout of a parameter table, its value column ``val``.

    Raises:
        SessionError: it is no DataArray, or has no dims.
        DTypeError: its values are not floats.
        ShapeError, DomainError: dims or coordinates that cannot be key columns.
    """
    if not hasattr(array, "dims") or not hasattr(array, "coords"):
        raise SessionError(f"parameter {name!r} is a {type(array).__name__}; give a DataArray")
    dims = tuple(map(str, array.dims))
    if not dims:
        raise SessionError(
            f"parameter {name!r} has no dims, so nothing identifies its row; "
            "give it a dim of size 1"
        )
    if np.dtype(array.dtype).kind != "f":
        raise DTypeError(f"parameter {name!r}: weights must be floats, not {array.dtype}")
    coords = {str(d): array.coords[d].values for d in array.dims if d in array.coords}
    return table_of_array(name, array, dims, "val", None, coords)


def element(precision: Precision) -> torch.dtype:
    """Element type of the state."""
    return torch.float64 if precision is Precision.FLOAT64 else torch.float32


def checked_weights(
    layout: StateLayout, weights: Mapping[str, object], dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """The weights as new CPU tensors by table.

    Args:
        weights: an array for each parameter table: DataArray, numpy or torch.

    Raises:
        SessionError: a table is missing, unknown or no array, or a value is not finite, or is
            not in the element type of the state.
        ShapeError, DTypeError: an array does not fit its table.
    """
    if not isinstance(weights, Mapping):
        raise SessionError(f"weights is a {kind(weights)}; it must map table names to arrays")
    known = [table.name for table in layout.tables]
    missing = [name for name in known if name not in weights]
    unknown = [name for name in weights if name not in known]
    if missing or unknown:
        raise SessionError(
            f"weights: missing {missing or 'nothing'}, unknown {unknown or 'nothing'}; "
            f"the parameter tables are {known}"
        )
    checked = {}
    for name in known:
        table = layout.arrays[name]
        array = checked_array(f"parameter {name!r}", weights[name])
        _check_places(table, array)
        given = table.check(table.columns[0], array, torch.device("cpu"))
        tensor = given.to(dtype, copy=True)
        outside = ~torch.isfinite(tensor)
        if bool(outside.any()):
            at = tuple(int(i) for i in outside.nonzero()[0])
            value = float(given[at])
            what = f"too large for {dtype}" if math.isfinite(value) else "not finite"
            raise SessionError(
                f"parameter {name!r}: value {value} at ({place(table, at)}) is {what}"
            )
        checked[name] = tensor
    return checked


def _check_places(table: CompactTable, array: Any) -> None:
    """Refuse a DataArray whose elements would get other places than their names say."""
    given = dims_of(array)
    if given is None:
        return
    own = tuple(table.dims)
    # A Dataset of weights calls a dim table_dim where tables disagree about its coordinates.
    names = [(dim, f"{table.name}_{dim}") for dim in own]
    if len(given) != len(own) or any(g not in n for g, n in zip(given, names, strict=True)):
        raise ShapeError(
            f"parameter {table.name!r}: the DataArray has the dims {given}, the table {own}; "
            "transpose or rename them"
        )
    for found, (dim, domain) in zip(given, table.dims.items(), strict=True):
        if found in array.coords and not np.array_equal(
            array.coords[found].values, domain.values()
        ):
            raise SessionError(
                f"parameter {table.name!r}: the DataArray has other coordinates along {dim!r} than "
                "the table; bring them into the table's order"
            )


def place(table: CompactTable, at: Sequence[int]) -> str:
    """The coordinates of an element, for messages."""
    return ", ".join(
        f"{dim}={domain.values()[i]}"
        for (dim, domain), i in zip(table.dims.items(), at, strict=True)
    )


def initial_state(
    layout: StateLayout, weights: Mapping[str, torch.Tensor], device: torch.device
) -> dict[str, torch.Tensor]:
    """The state before the first update: averages start at the weights, other slots at 0."""
    state = {}
    for table in layout.tables:
        weight = weights[table.name]
        state[table.name] = weight.to(device, copy=True)
        for slot in layout.slots:
            start = weight if slot == EMA_SLOT else torch.zeros_like(weight)
            state[f"{table.name}.{slot}"] = start.to(device, copy=True)
    return state

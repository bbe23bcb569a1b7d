"""Reading of registered arrays: only the positions that a program's inputs are of.

Whatever a query reads of one column is read at once, so that a lazy array computes no block
twice; each input is then a part of that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .registration import Registered, extract
from .streaming.selections import Selection, is_range
from .tables import ValueColumn

#: Positions read along each axis of an array; None: all.
Positions = tuple[np.ndarray | None, ...]


@dataclass(frozen=True, slots=True)
class _Block:
    """What was read of a column, and where it is not NULL (None: everywhere)."""

    positions: Positions
    values: torch.Tensor
    valid: torch.Tensor | None


class Reader:
    """Reads the arrays of one query as of now."""

    def __init__(self, tables: Mapping[str, Registered], device: torch.device) -> None:
        self._device = device
        self._columns: dict[str, tuple[Registered, ValueColumn, bool]] = {}
        for registered in tables.values():
            table = registered.table
            for column in table.columns:
                self._columns[table.input_name(column)] = (registered, column, False)
                self._columns[table.mask_name(column)] = (registered, column, True)

    def array(self, source: str) -> Any:
        """The registered array behind an input; not read."""
        registered, column, _ = self._columns[source]
        return registered.arrays[column.name]

    def dims(self, source: str) -> tuple[str, ...]:
        """Names of an input's axes."""
        return self._columns[source][1].dims

    def read(self, parts: Mapping[str, Selection]) -> dict[str, torch.Tensor]:
        """The parts of arrays, by name.

        Raises:
            ShapeError, DTypeError, DomainError: an array is no longer as registered.
        """
        wanted: dict[tuple[str, str], list[Selection]] = {}
        for part in parts.values():
            registered, column, _ = self._columns[part.source]
            wanted.setdefault((registered.table.name, column.name), []).append(part)
        blocks = {key: self._block(found) for key, found in wanted.items()}
        tensors = {}
        for name, part in parts.items():
            registered, column, is_mask = self._columns[part.source]
            block = blocks[registered.table.name, column.name]
            tensor = block.values
            if is_mask:
                tensor = block.valid if block.valid is not None else _all(block.values)
            tensors[name] = _cut(tensor, block.positions, part)
        return tensors

    def _block(self, parts: Sequence[Selection]) -> _Block:
        registered, column, _ = self._columns[parts[0].source]
        table = registered.table
        array, mask = registered.arrays[column.name], registered.masks.get(column.name)
        table.check_shape(column, array)
        positions = tuple(_union([p.positions[i] for p in parts]) for i in range(len(column.dims)))
        array, mask = _part(array, positions), None if mask is None else _part(mask, positions)
        values, valid = extract(array, mask)
        if valid is not None and column.domain is not None:
            zero = values.dtype.type(0) if isinstance(values, np.ndarray) else 0
            values = np.where(np.asarray(valid), np.asarray(values), zero)
        tensor = table.check_values(column, values, self._device, positions)
        return _Block(positions, tensor, None if valid is None else self._mask(valid))

    def _mask(self, valid: Any) -> torch.Tensor:
        if not isinstance(valid, torch.Tensor):
            valid = torch.from_numpy(np.require(valid, dtype=bool, requirements=["C", "W"]))
        return valid.to(device=self._device, dtype=torch.bool)


def _all(values: torch.Tensor) -> torch.Tensor:
    return torch.ones(values.shape, dtype=torch.bool, device=values.device)


def _union(wanted: Sequence[int | np.ndarray | None]) -> np.ndarray | None:
    """Positions that several readings need along one axis, ascending; None: all."""
    if any(w is None for w in wanted):
        return None
    return np.unique(np.concatenate([np.atleast_1d(np.asarray(w)) for w in wanted]))


def _index(positions: np.ndarray | None) -> slice | np.ndarray:
    if positions is None:
        return slice(None)
    if is_range(positions):
        return slice(int(positions[0]), int(positions[-1]) + 1)
    return positions


def _part(array: Any, positions: Positions) -> Any:
    """The array at some positions along each axis, as lazy as it is."""
    if all(p is None for p in positions):
        return array
    index = [_index(p) for p in positions]
    if hasattr(array, "isel"):
        return array.isel(dict(zip(array.dims, index, strict=True)))
    if hasattr(type(array), "values") and not hasattr(array, "__getitem__"):
        array = array.values
    if len(index) == 1:
        return array[index[0]]
    slices = tuple(i if isinstance(i, slice) else slice(None) for i in index)
    if any(s != slice(None) for s in slices):
        array = array[slices]
    for axis, taken in enumerate(index):
        if not isinstance(taken, slice):
            array = array[(*[slice(None)] * axis, taken)]
    return array


def _cut(tensor: torch.Tensor, read: Positions, part: Selection) -> torch.Tensor:
    """A part's tensor from the block that was read."""
    for axis in reversed(range(len(read))):
        known, wanted = read[axis], part.positions[axis]
        if wanted is None:
            continue
        places = np.asarray(wanted)
        if known is not None:
            places = np.searchsorted(known, places)
        if isinstance(wanted, int):
            tensor = tensor.select(axis, int(places))
        elif len(places) == tensor.shape[axis] and is_range(places):
            continue
        elif is_range(places):
            tensor = tensor.narrow(axis, int(places[0]), len(places))
        else:
            tensor = tensor.index_select(axis, torch.from_numpy(places).to(tensor.device))
    remaining = sorted(part.order)
    return tensor.permute([remaining.index(a) for a in part.order])

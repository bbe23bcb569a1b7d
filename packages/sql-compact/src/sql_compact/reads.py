"""What a query reads of each registered array: which positions along which axes.

A filter that fixes or bounds a coordinate becomes a slice or a gather of the input, so only
those positions of a lazy array need to be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .registration import Registered, extract
from .tables import Nulls, ValueColumn
from .tensor.graph import Node, Op, topological


@dataclass(frozen=True, slots=True)
class Region:
    """The part of an array that is read: positions along some axes, all along others."""

    positions: Mapping[int, np.ndarray]

    def index(self, axis: int) -> slice | np.ndarray:
        """Positions along an axis, as a slice where they are consecutive."""
        found = self.positions.get(axis)
        if found is None:
            return slice(None)
        if len(found) and np.array_equal(found, np.arange(found[0], found[0] + len(found))):
            return slice(int(found[0]), int(found[0]) + len(found))
        return found


def regions(outputs: Sequence[Node]) -> Mapping[str, Region]:
    """The region of each input that the program of ``outputs`` reads, by input name."""
    nodes = topological(outputs)
    users: dict[int, list[Node]] = {}
    for node in nodes:
        for index in {o.node.index for o in node.operands}:
            users.setdefault(index, []).append(node)
    results = {node.index for node in outputs}
    found = {}
    for node in nodes:
        if node.op is Op.INPUT:
            found[str(node.attributes)] = Region(_restrictions(node, users, results))
    return found


def _restrictions(
    node: Node, users: Mapping[int, list[Node]], results: set[int]
) -> dict[int, np.ndarray]:
    """Positions read along axes, as far as every user agrees."""
    axes: list[int | None] = list(range(node.rank))  # None: already restricted
    found: dict[int, np.ndarray] = {}
    while node.index not in results:
        readers = users.get(node.index, [])
        picks = [_pick(reader, node) for reader in readers]
        if not picks or any(p is None for p in picks):
            break
        along = {p[0] for p in picks if p is not None}
        axis = axes[along.pop()] if len(along) == 1 else None
        if axis is None:
            break
        found[axis] = np.unique(np.concatenate([p[1] for p in picks if p is not None]))
        if len(readers) > 1:
            break
        node = readers[0]
        if node.op is Op.SLICE:
            axes.remove(axis)
        else:
            value = node.operands[0]
            place = dict(zip(value.axes, axes, strict=True))
            axes = [place.get(i) for i in range(node.rank)]
    return found


def _pick(reader: Node, node: Node) -> tuple[int, np.ndarray] | None:
    """The axis of ``node`` that an operation reads some positions of, and which."""
    if reader.op is Op.SLICE:
        axis, position = reader.attributes
        return axis, np.array([position])
    if reader.op is Op.GATHER:
        value, index = reader.operands
        if value.node is node and index.node is not node and index.node.op is Op.DATA:
            return value.axes.index(-1), np.unique(index.node.attributes.values)
    return None


class Reader:
    """Reads the arrays of one query as of now, each column once."""

    def __init__(self, tables: Mapping[str, Registered], device: torch.device) -> None:
        self._device = device
        self._read: dict[tuple[str, str], tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._inputs: dict[str, tuple[Registered, ValueColumn, bool]] = {}
        for registered in tables.values():
            for column in registered.table.columns:
                table = registered.table
                self._inputs[table.input_name(column)] = (registered, column, False)
                self._inputs[table.mask_name(column)] = (registered, column, True)

    def input(self, name: str, regions: Mapping[str, Region]) -> tuple[ValueColumn, torch.Tensor]:
        """The column an input is of, and its tensor; unread positions hold anything.

        Raises:
            ShapeError, DTypeError, DomainError: the array is no longer as registered.
        """
        registered, column, is_mask = self._inputs[name]
        table = registered.table
        key = (table.name, column.name)
        if key not in self._read:
            array, mask = registered.arrays[column.name], registered.masks.get(column.name)
            needed = [regions.get(n) for n in (table.input_name(column), table.mask_name(column))]
            wanted = [r.positions for r in needed if r is not None]
            self._read[key] = self._column(
                registered, column, array, mask, _common(wanted) if wanted else {}
            )
        values, valid = self._read[key]
        if not is_mask:
            return column, values
        if valid is None:
            valid = torch.ones(column.shape, dtype=torch.bool, device=self._device)
        return column, valid

    def _column(
        self,
        registered: Registered,
        column: ValueColumn,
        array: Any,
        mask: Any,
        positions: Mapping[int, np.ndarray],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        table = registered.table
        if not positions or not hasattr(array, "isel") or mask is not None:
            values, valid = extract(array, mask)
            if column.nulls is Nulls.MASK and valid is not None and column.domain is not None:
                zero = values.dtype.type(0) if isinstance(values, np.ndarray) else 0
                values = np.where(np.asarray(valid), np.asarray(values), zero)
            tensor = table.check(column, values, self._device)
            return tensor, None if valid is None else self._mask(valid)
        region = Region(positions)
        index = tuple(region.index(axis) for axis in range(len(column.dims)))
        part = array.isel(dict(zip(array.dims, index, strict=True)))
        if tuple(map(int, array.shape)) != column.shape:
            return table.check(column, array, self._device), None
        loaded = table.check_values(column, part.values, self._device)
        whole = torch.empty(column.shape, dtype=loaded.dtype, device=self._device)
        grids = [
            torch.arange(size)[i] if isinstance(i, slice) else torch.from_numpy(i)
            for i, size in zip(index, column.shape, strict=True)
        ]
        whole[torch.meshgrid(*grids, indexing="ij")] = loaded
        return whole, None

    def _mask(self, valid: Any) -> torch.Tensor:
        if not isinstance(valid, torch.Tensor):
            valid = torch.from_numpy(np.require(valid, dtype=bool, requirements=["C", "W"]))
        return valid.to(device=self._device, dtype=torch.bool)


def _common(wanted: Sequence[Mapping[int, np.ndarray]]) -> dict[int, np.ndarray]:
    """Positions that cover every region: the union along axes that all restrict."""
    axes = set.intersection(*(set(w) for w in wanted))
    return {axis: np.unique(np.concatenate([w[axis] for w in wanted])) for axis in axes}

"""The declared sets of batch shapes, and the programs of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from sql_compact import CompactTable, ShapeError

from .arguments import kind
from .errors import SessionError
from .inputs import BatchInput, check_is_batch
from .programs import ShapePrograms

_Layouts = dict[str, CompactTable]


@dataclass(frozen=True, slots=True, eq=False)
class StagedBatch:
    """A batch of a session that is checked and copied, and on its way to the device.

    Attributes:
        programs: those for its shapes.
        inputs: its arrays by input name, copies in the memory of the host.
    """

    programs: ShapePrograms
    inputs: Mapping[str, torch.Tensor]


class BatchShapes:
    """Finds the programs for a batch by its shapes.

    The first set's programs are made at once, so that whatever is wrong with the loss is
    known; those of the others when they are first used.

    Args:
        batch: the inputs, in their first shapes.
        others: further sets of shapes, each by table name.
        make: makes the programs for a set of layouts.

    Raises:
        SessionError: a set names an unknown table, has another number of dims, or repeats.
    """

    def __init__(
        self,
        batch: Mapping[str, BatchInput],
        others: Sequence[Mapping[str, tuple[int, ...]]],
        make: Callable[[Mapping[str, CompactTable]], ShapePrograms],
    ) -> None:
        if isinstance(others, str) or not isinstance(others, Sequence):
            raise SessionError(f"batch_shapes is a {kind(others)}; it must be a list of mappings")
        sets = [_layouts(batch, {}), *(_layouts(batch, shapes) for shapes in others)]
        self._sets = {_key(layouts): layouts for layouts in sets}
        if len(self._sets) < len(sets):
            raise SessionError("batch_shapes: a set of shapes is declared twice")
        self._make = make
        self._first = next(iter(self._sets))
        self._programs = {self._first: make(self._sets[self._first])}

    @property
    def first(self) -> ShapePrograms:
        """The programs of the first set."""
        return self._programs[self._first]

    @property
    def made(self) -> list[ShapePrograms]:
        """The programs made so far."""
        return list(self._programs.values())

    def of(self, batch: Mapping[str, Any]) -> ShapePrograms:
        """The programs for a batch; the first ones if arrays are missing or unknown.

        Raises:
            SessionError: it is no batch.
            ShapeError: no set has the batch's shapes, and more than one is declared.
        """
        check_is_batch(batch)
        if len(self._sets) == 1 or set(batch) != set(self.first.batch):
            return self.first
        key = tuple(tuple(getattr(batch[name], "shape", ())) for name in self.first.batch)
        if key not in self._sets:
            given = dict(zip(self.first.batch, key, strict=True))
            declared = [dict(zip(self.first.batch, k, strict=True)) for k in self._sets]
            raise ShapeError(f"batch: the shapes are {given}; declared are: {declared}")
        if key not in self._programs:
            self._programs[key] = self._make(self._sets[key])
        return self._programs[key]


def _layouts(batch: Mapping[str, BatchInput], shapes: Mapping[str, tuple[int, ...]]) -> _Layouts:
    if not isinstance(shapes, Mapping):
        raise SessionError(f"batch_shapes: {shapes!r} is no mapping from table names to shapes")
    for name in shapes:
        if name not in batch:
            raise SessionError(
                f"batch_shapes: there is no batch input {name!r}; there are {list(batch)}"
            )
    return {
        name: replace(given, shape=shapes.get(name, given.shape)).layout(name)
        for name, given in batch.items()
    }


def _key(layouts: _Layouts) -> tuple[tuple[int, ...], ...]:
    return tuple(layout.columns[0].shape for layout in layouts.values())

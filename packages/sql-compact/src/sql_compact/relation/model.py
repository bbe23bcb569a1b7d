"""Relations as dense arrays: row axes, columns, and a mask of which rows are present.

A relation's rows are the points of the product of its row axes where ``present`` holds.
An axis stays a row axis even when no column shows it, so counts and sums keep SQL's bag
semantics. A :class:`Bag` is the UNION ALL of its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ..domain import Domain, Range, domain_of
from ..dtypes import DType
from ..ordering import Step
from ..tensor.graph import scalar_value
from ..tensor.labelled import Axis, Tensor, TensorBuilder


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A row axis seen as values; never NULL."""

    axis: Axis

    @property
    def valid(self) -> None:
        return None

    @property
    def domain(self) -> Domain:
        return self.axis.domain


@dataclass(frozen=True, slots=True)
class Coded:
    """Values of a bounded domain: ``code`` is their position in it.

    Codes of absent rows and NULLs are in range too (they are never looked at).
    """

    code: Tensor
    domain: Domain
    valid: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Values:
    """Values over some of the row axes; ``valid`` is False where they are NULL."""

    value: Tensor
    valid: Tensor | None = None


Column = Coordinate | Coded | Values


@dataclass(frozen=True, slots=True)
class Relation:
    """Rows over the product of ``axes`` where ``present`` (None: everywhere)."""

    axes: tuple[Axis, ...]
    columns: tuple[Column, ...]
    present: Tensor | None = None

    def with_columns(self, columns: tuple[Column, ...]) -> Relation:
        return Relation(self.axes, columns, self.present)


@dataclass(frozen=True, slots=True)
class Bag:
    """UNION ALL of relations with the same columns; at least one part."""

    parts: tuple[Relation, ...]

    def map(self, function: Callable[[Relation], Relation]) -> Bag:
        return Bag(tuple(function(part) for part in self.parts))


@dataclass(frozen=True, slots=True)
class Table:
    """A folded table: what a query's FROM reads, or what a query returns.

    Attributes:
        steps: how a query's rows are ordered and limited, by the hidden columns that then
            follow the named ones.
    """

    names: tuple[str, ...]
    bag: Bag
    steps: tuple[Step, ...] = ()


def map_tensors(
    relation: Relation, function: Callable[[Tensor], Tensor], axes: tuple[Axis, ...]
) -> Relation:
    """The relation with every tensor passed through ``function``; Coordinates stay."""

    def optional(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else function(tensor)

    def column(c: Column) -> Column:
        if isinstance(c, Coded):
            return Coded(function(c.code), c.domain, optional(c.valid))
        if isinstance(c, Values):
            return Values(function(c.value), optional(c.valid))
        return c

    return Relation(axes, tuple(map(column, relation.columns)), optional(relation.present))


def rename(builder: TensorBuilder, relation: Relation, names: Mapping[Axis, Axis]) -> Relation:
    """The relation with axes replaced; two axes renamed to one are equated."""
    axes = tuple(dict.fromkeys(names.get(a, a) for a in relation.axes))
    renamed = map_tensors(relation, lambda t: builder.rename(t, names), axes)
    columns = tuple(
        Coordinate(names.get(c.axis, c.axis)) if isinstance(c, Coordinate) else c
        for c in renamed.columns
    )
    return Relation(axes, columns, renamed.present)


def bind(builder: TensorBuilder, relation: Relation, axis: Axis, code: Tensor) -> Relation:
    """The relation with ``axis`` read at positions ``code``, so no longer a row axis."""
    axes = tuple(a for a in relation.axes if a is not axis)
    bound = map_tensors(relation, lambda t: builder.gather(t, axis, code), axes)
    columns = tuple(
        Coded(code, axis.domain) if isinstance(c, Coordinate) and c.axis is axis else c
        for c in bound.columns
    )
    return Relation(axes, columns, bound.present)


def take(builder: TensorBuilder, relation: Relation, axis: Axis, kept: np.ndarray) -> Relation:
    """The relation with ``axis`` cut to some positions, in order."""
    shorter = Axis(axis.name, _subdomain(axis.domain, kept))
    index = Tensor(builder.graph.data(kept, DType.INT64), (shorter,))

    def picked(tensor: Tensor) -> Tensor:
        if axis not in tensor.axes:
            return tensor
        static = builder.static.value(tensor.node)
        if static is None:
            return builder.gather(tensor, axis, index)
        values = static.numpy().take(kept, axis=tensor.axes.index(axis))
        axes = tuple(shorter if a is axis else a for a in tensor.axes)
        return Tensor(builder.graph.data(values, tensor.dtype), axes)

    axes = tuple(shorter if a is axis else a for a in relation.axes)
    cut = map_tensors(relation, picked, axes)
    columns = tuple(
        Coordinate(shorter) if isinstance(c, Coordinate) and c.axis is axis else c
        for c in cut.columns
    )
    present = cut.present
    return Relation(axes, columns, builder.known_mask(present))


def _subdomain(domain: Domain, kept: np.ndarray) -> Domain:
    if isinstance(domain, Range) and len(kept) == kept[-1] - kept[0] + 1:
        return Range(len(kept), domain.start + int(kept[0]), domain.dtype)
    return domain_of(domain.values()[kept], "filter")


def nullable(builder: TensorBuilder, column: Column, valid: Tensor | None) -> Column:
    """The column, NULL where ``valid`` does not hold (None: nowhere)."""
    if isinstance(column, Values):
        return Values(column.value, valid)
    code = builder.iota(column.axis) if isinstance(column, Coordinate) else column.code
    return Coded(code, column.domain, valid)


def is_null(values: Values) -> bool:
    """Whether the column is known to be NULL everywhere."""
    return values.valid is not None and scalar_value(values.valid.node) is False


def fresh(builder: TensorBuilder, relation: Relation) -> Relation:
    """The relation over new axes, so that a second reading is independent of the first."""
    return rename(builder, relation, {a: Axis(a.name, a.domain) for a in relation.axes})

"""Equality of columns as structure: unified axes and gathers instead of masks.

``a.i = b.i`` on two coordinates unifies two row axes; on a coordinate and a bounded
column it reads the axis at that column (a gather); on a coordinate and a literal it
takes one position. Anything else is a condition on rows, left to the caller.
"""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import pyarrow as pa

from ..dates import nanoseconds
from ..domain import Domain, Range, positions
from ..dtypes import DType
from ..plan import nodes as n
from ..tensor.labelled import Axis, Tensor, TensorBuilder
from .model import Coded, Column, Coordinate, Relation, Values, bind, rename

#: Conditions that can be structure.
EQUALITIES = ("equal", "is_not_distinct_from")


def conjuncts(expression: n.Expression | None) -> list[n.Expression]:
    """The operands of nested ANDs."""
    if expression is None:
        return []
    if isinstance(expression, n.Call) and expression.name == "and":
        return [c for argument in expression.arguments for c in conjuncts(argument)]
    if isinstance(expression, n.Literal) and expression.value is True:
        return []
    return [expression]


def equate(
    builder: TensorBuilder, relation: Relation, condition: n.Expression, free: Set[Axis]
) -> Relation | None:
    """Impose an equality by eliminating one of the ``free`` axes; None if not possible.

    Among two candidates the later row axis goes, so the left side of a join keeps its own.
    """
    if not isinstance(condition, n.Call) or condition.name not in EQUALITIES:
        return None
    left, right = condition.arguments
    if isinstance(right, n.ColumnRef) and isinstance(left, n.Literal):
        left, right = right, left
    if not isinstance(left, n.ColumnRef):
        return None
    a = relation.columns[left.index]
    if isinstance(right, n.Literal):
        return _equate_literal(builder, relation, a, right, free)
    if not isinstance(right, n.ColumnRef):
        return None
    b = relation.columns[right.index]
    candidates = [(a, b), (b, a)]
    if isinstance(a, Coordinate) and isinstance(b, Coordinate):
        # Eliminate the axis that comes later.
        order = relation.axes.index
        candidates.sort(key=lambda pair: -order(pair[0].axis))
    for target, source in candidates:
        if isinstance(target, Coordinate) and target.axis in free:
            equated = _eliminate(builder, relation, target.axis, source)
            if equated is not None:
                return equated
    return None


def _eliminate(
    builder: TensorBuilder, relation: Relation, axis: Axis, source: Column
) -> Relation | None:
    """The relation with ``axis`` read at the values of ``source``, another column of it."""
    if isinstance(source, Coordinate):
        if source.axis is axis:
            return relation
        if source.domain == axis.domain:
            return rename(builder, relation, {axis: source.axis})
        if axis.size == 0:
            return None  # there is no position to read
        code, found = _align(builder, source.domain, axis.domain, builder.iota(source.axis))
        return _restrict(builder, bind(builder, relation, axis, code), found)
    if isinstance(source, Coded):
        if axis in source.code.axes or axis.size == 0:
            return None
        if source.domain == axis.domain:
            return _restrict(builder, bind(builder, relation, axis, source.code), source.valid)
        code, found = _align(builder, source.domain, axis.domain, source.code)
        bound = bind(builder, relation, axis, code)
        return _restrict(builder, bound, builder.conjunction((found, source.valid)))
    return _eliminate_by_value(builder, relation, axis, source)


def _eliminate_by_value(
    builder: TensorBuilder, relation: Relation, axis: Axis, source: Values
) -> Relation | None:
    """An integer column without a domain: in range or no match."""
    domain = axis.domain
    value = source.value
    if axis in value.axes or not isinstance(domain, Range) or not value.dtype.is_integer:
        return None
    if domain.size == 0:
        return None
    value = builder.cast(value, DType.INT64)
    offset = builder.map("subtract", value, builder.constant(domain.start, DType.INT64))
    low = builder.constant(0, DType.INT64)
    high = builder.constant(domain.size - 1, DType.INT64)
    inside = builder.map("and", builder.map("gte", offset, low), builder.map("lte", offset, high))
    code = builder.map("where", inside, offset, low)
    found = builder.known_mask(builder.conjunction((inside, source.valid)))
    return _restrict(builder, bind(builder, relation, axis, code), found)


def _align(
    builder: TensorBuilder, source: Domain, target: Domain, code: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Codes in ``target`` of the values coded in ``source``, and where there is one."""
    found = positions(source.values(), target)
    table = builder.graph.data(np.maximum(found, 0), DType.INT64)
    aligned = builder.lookup(table, code)
    if (found >= 0).all():
        return aligned, None
    hit = builder.lookup(builder.graph.data(found >= 0, DType.BOOL), code)
    return aligned, hit


def _equate_literal(
    builder: TensorBuilder, relation: Relation, column: Column, literal: n.Literal, free: Set[Axis]
) -> Relation | None:
    if not isinstance(column, Coordinate) or column.axis not in free or literal.value is None:
        return None
    position = int(positions(np.asarray([literal_value(literal)]), column.domain)[0])
    if position < 0:
        if column.domain.size == 0:
            return None
        never = builder.constant(False, DType.BOOL)
        nowhere = bind(builder, relation, column.axis, builder.constant(0, DType.INT64))
        return _restrict(builder, nowhere, never)
    return bind(builder, relation, column.axis, builder.constant(position, DType.INT64))


def literal_value(literal: n.Literal) -> object:
    """A literal as numpy holds it: timestamps as datetime64, others as they are."""
    if pa.types.is_timestamp(literal.type):
        return nanoseconds(np.datetime64(literal.value, literal.type.unit), "the query")
    if pa.types.is_date(literal.type):
        return nanoseconds(np.datetime64(literal.value, "D"), "the query")
    return literal.value


def _restrict(builder: TensorBuilder, relation: Relation, mask: Tensor | None) -> Relation:
    if mask is None:
        return relation
    present = builder.known_mask(builder.conjunction((relation.present, mask)))
    return Relation(relation.axes, relation.columns, present)

"""Filters and joins: products of relations restricted by their conditions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..domain import Range
from ..dtypes import DType
from ..errors import UnsupportedSQL
from ..plan import nodes as n
from ..tensor.labelled import Axis, Tensor, TensorBuilder
from .equalities import EQUALITIES, conjuncts, equate
from .expressions import Expressions, only_axis
from .model import Bag, Coded, Column, Coordinate, Relation, Values, nullable, take

_MIRRORS = {
    n.JoinKind.RIGHT: n.JoinKind.LEFT,
    n.JoinKind.RIGHT_SEMI: n.JoinKind.LEFT_SEMI,
    n.JoinKind.RIGHT_ANTI: n.JoinKind.LEFT_ANTI,
    n.JoinKind.RIGHT_MARK: n.JoinKind.LEFT_MARK,
}


class Joins:
    """Folds WHERE and every kind of JOIN."""

    def __init__(self, builder: TensorBuilder, expressions: Expressions) -> None:
        self._b = builder
        self._expressions = expressions

    def filter(self, relation: Relation, condition: n.Expression) -> Relation:
        """The rows where the condition is true.

        What depends on one coordinate alone shortens its axis, so that nothing is read or
        computed where no row is.
        """
        residual = []
        kept: dict[Axis, np.ndarray] = {}
        for term in conjuncts(condition):
            mask = self._mask_of_one_axis(relation, term)
            if mask is None:
                residual.append(term)
                continue
            axis, holds = mask
            kept[axis] = kept[axis] & holds if axis in kept else holds
        never = False
        for axis, holds in kept.items():
            if not holds.any():
                never = True
            elif not holds.all():
                relation = take(self._b, relation, axis, np.flatnonzero(holds))
        if never:
            none = self._b.constant(False, DType.BOOL)
            relation = Relation(relation.axes, relation.columns, none)
        return self._restrict(relation, residual, frozenset(relation.axes))

    def _mask_of_one_axis(
        self, relation: Relation, condition: n.Expression
    ) -> tuple[Axis, np.ndarray] | None:
        """Where along an axis a condition on it holds; None for any other condition."""
        axis = only_axis(condition, relation)
        if axis is None or axis.size == 0:
            return None
        mask = self._expressions.condition(condition, relation)
        if mask is None:
            return axis, np.ones(axis.size, dtype=bool)
        value = self._b.static.value(mask.node)
        if value is None or any(a is not axis for a in mask.axes):
            return None
        return axis, np.broadcast_to(value.numpy(), (axis.size,))

    def _restrict(
        self, relation: Relation, conditions: list[n.Expression], free: frozenset[Axis]
    ) -> Relation:
        """Impose structural equalities first: they shrink what the others are evaluated on."""
        residual = []
        width = len(relation.columns)
        for condition in conditions:
            relation, condition = self._with_sides(relation, condition)
            equated = equate(self._b, relation, condition, free)
            if equated is None:
                residual.append(condition)
            else:
                relation = equated
        for condition in residual:
            mask = self._expressions.condition(condition, relation)
            present = self._b.known_mask(self._b.conjunction((relation.present, mask)))
            columns = _without_nulls(relation.columns, condition)
            relation = Relation(relation.axes, columns, present)
        return relation.with_columns(relation.columns[:width])

    def _with_sides(
        self, relation: Relation, condition: n.Expression
    ) -> tuple[Relation, n.Expression]:
        """An equality's computed sides as further columns, where they have a domain.

        ``a.time = b.time + INTERVAL '1 year'`` then reads one axis at positions of the other.
        """
        if not isinstance(condition, n.Call) or condition.name not in EQUALITIES:
            return relation, condition
        sides = list(condition.arguments)
        for i, side in enumerate(sides):
            if isinstance(side, n.ColumnRef | n.Literal):
                continue
            column = self._expressions.over_domain(side, relation)
            if column is None:
                column = self._integers(side, sides[1 - i], relation)
            if column is not None:
                sides[i] = n.ColumnRef(len(relation.columns))
                relation = relation.with_columns((*relation.columns, column))
        return relation, n.Call(condition.name, tuple(sides))

    def _integers(
        self, side: n.Expression, other: n.Expression, relation: Relation
    ) -> Values | None:
        """An integer expression that is equated with a dim of consecutive integers."""
        if not isinstance(other, n.ColumnRef):
            return None
        target = relation.columns[other.index]
        if not isinstance(target, Coordinate) or not isinstance(target.domain, Range):
            return None
        try:
            column = self._expressions.evaluate(side, relation)
        except UnsupportedSQL:
            return None
        found = isinstance(column, Values) and column.value.dtype.is_integer
        return column if found else None

    def join(self, kind: n.JoinKind, left: Bag, right: Bag, condition: n.Expression | None) -> Bag:
        """Join two bags; equal dims become one axis, other conditions a mask."""
        terms = conjuncts(condition)
        if kind is n.JoinKind.INNER:
            return Bag(tuple(self._inner(a, b, terms) for a in left.parts for b in right.parts))
        if kind in _MIRRORS:
            return self._mirrored(kind, left, right, condition)
        parts: list[Relation] = []
        for part in left.parts:
            parts += self._one_sided(kind, part, right, terms)
        if kind is n.JoinKind.FULL:
            parts += self._unmatched_right(left, right, condition)
        return Bag(tuple(parts))

    def refuse_nulls(self, left: Bag, right: Bag, condition: n.Expression | None) -> None:
        """A condition of what may be NOT IN must not read a column that may be NULL.

        Raises:
            UnsupportedSQL: it does.
        """
        for a in left.parts:
            for b in right.parts:
                product = Relation(a.axes + b.axes, a.columns + b.columns)
                for term in conjuncts(condition):
                    if self._expressions.evaluate(term, product).valid is not None:
                        raise UnsupportedSQL(
                            "NOT IN (subquery)",
                            "a value on either side may be NULL, which decides every row",
                            "Use NOT EXISTS, where NULL matches nothing",
                        )

    def _mirrored(
        self, kind: n.JoinKind, left: Bag, right: Bag, condition: n.Expression | None
    ) -> Bag:
        """A right join is the left join of the sides exchanged."""
        widths = (len(left.parts[0].columns), len(right.parts[0].columns))
        swapped = [_exchange(term, *widths) for term in conjuncts(condition)]
        parts: list[Relation] = []
        for part in right.parts:
            parts += self._one_sided(_MIRRORS[kind], part, left, swapped)
        if kind is not n.JoinKind.RIGHT:
            return Bag(tuple(parts))
        split = widths[1]
        return Bag(tuple(p.with_columns(p.columns[split:] + p.columns[:split]) for p in parts))

    def _inner(self, left: Relation, right: Relation, terms: list[n.Expression]) -> Relation:
        product = Relation(
            left.axes + right.axes,
            left.columns + right.columns,
            self._b.conjunction((left.present, right.present)),
        )
        return self._restrict(product, terms, frozenset(product.axes))

    def _matched(self, left: Relation, right: Relation, terms: list[n.Expression]) -> Relation:
        """The product, present where a right row matches; the left rows' own mask left out."""
        product = Relation(left.axes + right.axes, left.columns + right.columns, right.present)
        return self._restrict(product, terms, frozenset(right.axes))

    def _one_sided(
        self, kind: n.JoinKind, left: Relation, right: Bag, terms: list[n.Expression]
    ) -> list[Relation]:
        matches = [self._matched(left, part, terms) for part in right.parts]
        if kind in (n.JoinKind.LEFT_SEMI, n.JoinKind.LEFT_ANTI):
            return [self._keep_matched(kind, left, matches)]
        if kind is n.JoinKind.LEFT_MARK:
            exists = self._any_match(left, matches)
            mark = self._b.constant(True, DType.BOOL) if exists is None else exists
            return [left.with_columns((*left.columns, Values(mark)))]
        if len(matches) == 1 and set(matches[0].axes) == set(left.axes):
            return [self._at_most_one(left, matches[0])]
        parts = [
            Relation(m.axes, m.columns, self._b.conjunction((left.present, m.present)))
            for m in matches
        ]
        width = len(left.columns)
        nulls = tuple(null_column(self._b, c) for c in matches[0].columns[width:])
        present = self._keep_matched(n.JoinKind.LEFT_ANTI, left, matches).present
        if not self._b.is_never(present):
            parts.append(Relation(left.axes, left.columns + nulls, present))
        return parts

    def _at_most_one(self, left: Relation, match: Relation) -> Relation:
        """Every left row has one right row or none: the right columns become nullable."""
        if match.present is None:
            return Relation(left.axes, match.columns, left.present)
        width = len(left.columns)
        columns = tuple(self._nullable(c, match.present) for c in match.columns[width:])
        return Relation(left.axes, left.columns + columns, left.present)

    def _nullable(self, column: Column, valid: Tensor) -> Column:
        both = self._b.conjunction((column.valid, valid))
        return nullable(self._b, column, both)

    def _keep_matched(self, kind: n.JoinKind, left: Relation, matches: list[Relation]) -> Relation:
        exists = self._any_match(left, matches)
        if kind is n.JoinKind.LEFT_ANTI:
            exists = (
                self._b.constant(False, DType.BOOL)
                if exists is None
                else self._b.map("not", exists)
            )
        present = self._b.known_mask(self._b.conjunction((left.present, exists)))
        return Relation(left.axes, left.columns, present)

    def _any_match(self, left: Relation, matches: list[Relation]) -> Tensor | None:
        """Where some right row matches; None: everywhere."""
        found: Tensor | None = None
        for match in matches:
            extra = [a for a in match.axes if a not in left.axes]
            if any(a.size == 0 for a in extra):
                continue
            if match.present is None:
                return None
            hit = self._b.reduce("any", match.present, extra)
            found = hit if found is None else self._b.map("or", found, hit)
        return self._b.constant(False, DType.BOOL) if found is None else found

    def _unmatched_right(
        self, left: Bag, right: Bag, condition: n.Expression | None
    ) -> list[Relation]:
        unmatched = self._mirrored(n.JoinKind.RIGHT_ANTI, left, right, condition)
        nulls = tuple(null_column(self._b, c) for c in left.parts[0].columns)
        return [p.with_columns(nulls + p.columns) for p in unmatched.parts]


def _without_nulls(columns: tuple[Column, ...], condition: n.Expression) -> tuple[Column, ...]:
    """The columns of rows where the condition holds; ``IS NOT NULL`` leaves no NULL."""
    match condition:
        case n.Call("is_not_null", (n.ColumnRef(index),)) if columns[index].valid is not None:
            valid = columns[index].valid
            return tuple(
                replace(c, valid=None) if not isinstance(c, Coordinate) and c.valid == valid else c
                for c in columns
            )
    return columns


def null_column(builder: TensorBuilder, like: Column) -> Column:
    """A column of NULLs of the same type."""
    never = builder.constant(False, DType.BOOL)
    if isinstance(like, Values):
        return Values(builder.constant(0, like.value.dtype), never)
    domain = like.domain if like.domain.size else Range(1)
    return Coded(builder.constant(0, DType.INT64), domain, never)


def _exchange(expression: n.Expression, left: int, right: int) -> n.Expression:
    """The condition with the two sides' columns exchanged."""
    if isinstance(expression, n.ColumnRef):
        index = expression.index
        return n.ColumnRef(index + right if index < left else index - left)
    return n.map_operands(expression, lambda operand: _exchange(operand, left, right))

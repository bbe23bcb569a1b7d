"""Aggregate functions over grouped rows: SUM, COUNT, AVG, MIN, MAX, VAR and the like.

Absent rows contribute the function's identity, by ``where``, never by multiplying with a
mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..domain import Explicit, common_domain, placeholder
from ..dtypes import DType
from ..errors import BudgetError, UnsupportedSQL
from ..plan import nodes as n
from ..tensor.labelled import Axis, Tensor, TensorBuilder
from .expressions import Expressions
from .groups import Grouped, Groups
from .model import Coded, Column, Coordinate, Relation, Values

#: Rows that BIGINT can count.
_MOST_ROWS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Term:
    """What one part contributes to an aggregate.

    Attributes:
        value: the argument (None for COUNT).
        mask: the rows that contribute (None: all).
        filtered: whether a row of the group may not contribute (NULL or FILTER).
    """

    value: Tensor | None
    mask: Tensor | None
    reduced: tuple[Axis, ...]
    filtered: bool


class Measures:
    """Folds aggregate functions."""

    def __init__(self, builder: TensorBuilder, expressions: Expressions, groups: Groups) -> None:
        self._b = builder
        self._expressions = expressions
        self._groups = groups

    def measure(self, measure: n.Measure, parts: list[Grouped], always: bool) -> Column:
        """One aggregate over the groups; ``always``: the row exists without any input row."""
        name = measure.function.lower()
        if measure.distinct and name not in ("min", "max"):
            measure, part = self._distinct(measure, parts)
            parts = [part]
        function = _FUNCTIONS.get(name)
        if function is None:
            raise UnsupportedSQL(name.upper(), "this aggregate has no tensor form")
        if name in ("min", "max"):
            coded = self._coded_extreme(name, measure, parts, always)
            if coded is not None:
                return coded
        terms = [self._argument(measure, part) for part in parts]
        return function(self, terms, always)

    def _coded_extreme(
        self, name: str, measure: n.Measure, parts: list[Grouped], always: bool
    ) -> Coded | None:
        """The least or greatest text or date, by its position among all in order."""
        columns = []
        for part in parts:
            column = self._expressions.evaluate(measure.arguments[0], part.relation)
            if isinstance(column, Values) or column.domain.dtype is not None:
                return None
            columns.append(column)
        domain = common_domain([c.domain for c in columns])
        values = np.asarray(sorted(domain.values()), dtype=domain.values().dtype)
        if not len(values):
            never = self._b.constant(False, DType.BOOL)
            return Coded(
                self._b.constant(0, DType.INT64), Explicit(placeholder(values.dtype)), never
            )
        ordered = Explicit(values)
        terms = []
        for part, column in zip(parts, columns, strict=True):
            code = self._groups.renamed_code(column, ordered, {})
            terms.append(self._term(measure, part, code, column.valid))
        found = self._extreme(name, terms, always)
        code = self._b.where(found.valid, found.value, self._b.constant(0, DType.INT64))
        return Coded(code, ordered, found.valid)

    def _distinct(self, measure: n.Measure, parts: list[Grouped]) -> tuple[n.Measure, Grouped]:
        """The plain measure over rows that are each group's distinct values."""
        operator = f"{measure.function.upper()}(DISTINCT ...)"
        if len(measure.arguments) != 1:
            raise UnsupportedSQL(operator, "it has more than one argument")
        argument = measure.arguments[0]
        keyed = []
        for part in parts:
            try:
                keyed.append(self._groups.key(argument, part.relation))
            except UnsupportedSQL as error:
                raise UnsupportedSQL(
                    operator,
                    "its argument must be a dimension, a column with a declared domain, an "
                    "expression of one of these, or boolean",
                    error.hint,
                ) from error
        axis = Axis("distinct", common_domain([k.domain for k in keyed]))
        present: Tensor | None = None
        for part, key in zip(parts, keyed, strict=True):
            mask = self._mask(measure, part)
            code = self._groups.renamed_code(key, axis.domain, {})
            hit = self._b.map("equal", code, self._b.iota(axis))
            rows = self._b.conjunction((mask, key.valid, hit))
            assert rows is not None
            if any(a.size == 0 for a in part.reduced):
                rows = self._b.constant(False, DType.BOOL)
            found = self._b.reduce("any", rows, part.reduced)
            present = found if present is None else self._b.map("or", present, found)
        axes = () if present is None else present.axes
        rows_axes = tuple(dict.fromkeys((*axes, axis)))
        relation = Relation(rows_axes, (Coordinate(axis),), present)
        plain = n.Measure(measure.function, (n.ColumnRef(0),), False, None)
        return plain, Grouped(relation, present, (axis,), True)

    def _mask(self, measure: n.Measure, part: Grouped) -> Tensor | None:
        """The rows that the measure's FILTER leaves."""
        if measure.filter is None:
            return part.rows
        condition = self._expressions.condition(measure.filter, part.relation)
        return self._b.conjunction((part.rows, condition))

    def _argument(self, measure: n.Measure, part: Grouped) -> Term:
        value: Tensor | None = None
        valid: Tensor | None = None
        if measure.arguments:
            column = self._expressions.evaluate(measure.arguments[0], part.relation)
            valid = column.valid
            if measure.function != "count":
                value = self._expressions.value_of(column).value
        return self._term(measure, part, value, valid)

    def _term(
        self, measure: n.Measure, part: Grouped, value: Tensor | None, valid: Tensor | None
    ) -> Term:
        filtered = part.partial or measure.filter is not None or valid is not None
        mask = self._b.conjunction((self._mask(measure, part), valid))
        return Term(value, self._b.known_mask(mask), part.reduced, filtered)

    def _contributes(self, terms: list[Term], always: bool) -> Tensor | None:
        """Where some row contributes a value, or None where each existing group has one."""
        if not always and not any(t.filtered for t in terms):
            return None
        return self._groups.any_row((t.mask, t.reduced) for t in terms)

    def _combine(
        self, function: str, terms: list[Term], identity: bool | int | float, merge: str
    ) -> Tensor:
        """Reduce each part over its rows, then merge the parts."""
        results: list[Tensor] = []
        terms = [t for t in terms if all(a.size for a in t.reduced)] or terms[:1]
        for term in terms:
            assert term.value is not None
            value = term.value
            dropped = [a for a in term.reduced if term.mask is not None and a in term.mask.axes]
            if dropped or len(terms) > 1:
                value = self._b.where(term.mask, value, self._b.constant(identity, value.dtype))
            if any(a.size == 0 for a in term.reduced):
                results.append(self._b.constant(identity, value.dtype))
                continue
            result = self._b.reduce(function, value, term.reduced)
            if function == "sum":
                result = self._repeat(result, value, term.reduced)
            results.append(result)
        total = results[0]
        for other in results[1:]:
            total = self._b.map(merge, total, other)
        return total

    def _repeat(self, total: Tensor, value: Tensor, reduced: tuple[Axis, ...]) -> Tensor:
        """A value that does not depend on a reduced axis is counted once for each row."""
        times = math.prod(a.size for a in reduced if a not in value.axes)
        if times == 1:
            return total
        if times > _MOST_ROWS and not total.dtype.is_float:
            raise BudgetError(
                f"the query has {times:.3g} rows, more than BIGINT can count; join the tables on "
                "their dims, or aggregate before joining"
            )
        return self._b.map("multiply", total, self._b.constant(times, total.dtype))

    def _sum_of(self, terms: list[Term]) -> Tensor:
        return self._combine("sum", terms, 0, "add")

    def _count_of(self, terms: list[Term]) -> Tensor:
        ones = []
        for term in terms:
            one = self._b.constant(1, DType.INT64)
            if term.mask is not None:
                one = self._b.cast(term.mask, DType.INT64)
            ones.append(Term(one, None, term.reduced, term.filtered))
        total = self._sum_of(ones)
        value = self._b.static.value(total.node)
        if value is not None and value.numel() and bool((value == value.reshape(-1)[0]).all()):
            return self._b.constant(value.reshape(-1)[0].item(), DType.INT64)
        return total

    def _cast_terms(self, terms: list[Term], dtype: Callable[[DType], DType]) -> list[Term]:
        return [
            Term(self._b.cast(t.value, dtype(t.value.dtype)), t.mask, t.reduced, t.filtered)
            for t in terms
        ]

    def _sum(self, terms: list[Term], always: bool) -> Values:
        def wide(dtype: DType) -> DType:
            return DType.FLOAT64 if dtype.is_float else DType.INT64

        total = self._sum_of(self._cast_terms(terms, wide))
        if all(t.value is not None and t.value.dtype.numpy.kind == "u" for t in terms):
            total = self._b.cast(total, DType.UINT64)
        return Values(total, self._contributes(terms, always))

    def _count(self, terms: list[Term], always: bool) -> Values:
        return Values(self._count_of(terms))

    def _mean(self, terms: list[Term]) -> Tensor:
        terms = self._cast_terms(terms, lambda _: DType.FLOAT64)
        count = self._b.cast(self._count_of(terms), DType.FLOAT64)
        return self._b.map("divide", self._sum_of(terms), count)

    def _avg(self, terms: list[Term], always: bool) -> Values:
        return Values(self._mean(terms), self._contributes(terms, always))

    def _extreme(self, name: str, terms: list[Term], always: bool) -> Values:
        assert terms[0].value is not None
        dtype = terms[0].value.dtype
        if dtype.is_bool:
            ordered = self._cast_terms(terms, lambda _: DType.INT8)
            extreme = self._extreme(name, ordered, always)
            return Values(self._b.cast(extreme.value, DType.BOOL), extreme.valid)
        if dtype.numpy.kind == "u":
            return self._unsigned_extreme(name, terms, always, dtype)
        sign = -1 if name == "max" else 1
        if dtype.is_float:
            identity: int | float = sign * math.inf
        else:
            info = np.iinfo(dtype.numpy)
            identity = info.min if name == "max" else info.max
        merge = "maximum" if name == "max" else "minimum"
        value = self._combine(name, terms, identity, merge)
        return Values(value, self._contributes(terms, always))

    def _unsigned_extreme(self, name: str, terms: list[Term], always: bool, dtype: DType) -> Values:
        """Torch has no extremes of unsigned numbers: those of signed ones in the same order."""
        signed = self._cast_terms(terms, lambda _: DType.INT64)
        if dtype is not DType.UINT64:
            found = self._extreme(name, signed, always)
            return Values(self._b.cast(found.value, dtype), found.valid)
        shift = self._b.constant(np.iinfo(np.int64).min, DType.INT64)
        moved = [
            Term(self._b.map("add", t.value, shift), t.mask, t.reduced, t.filtered) for t in signed
        ]
        found = self._extreme(name, moved, always)
        return Values(self._b.cast(self._b.map("add", found.value, shift), dtype), found.valid)

    def _max(self, terms: list[Term], always: bool) -> Values:
        return self._extreme("max", terms, always)

    def _min(self, terms: list[Term], always: bool) -> Values:
        return self._extreme("min", terms, always)

    def _spread(self, terms: list[Term], always: bool, sample: bool, root: bool) -> Values:
        """Variance in two passes: mean, then mean squared deviation."""
        terms = self._cast_terms(terms, lambda _: DType.FLOAT64)
        mean = self._mean(terms)
        squares = []
        for term in terms:
            deviation = self._b.map("subtract", term.value, mean)
            square = self._b.map("multiply", deviation, deviation)
            squares.append(Term(square, term.mask, term.reduced, term.filtered))
        count = self._count_of(terms)
        if sample:
            count = self._b.map("subtract", count, self._b.constant(1, DType.INT64))
        variance = self._b.map("divide", self._sum_of(squares), self._b.cast(count, DType.FLOAT64))
        valid = self._contributes(terms, always)
        if sample:
            enough = self._b.map("gt", count, self._b.constant(0, DType.INT64))
            valid = self._b.known_mask(self._b.conjunction((valid, enough)))
        return Values(self._b.map("sqrt", variance) if root else variance, valid)


_FUNCTIONS: dict[str, Callable[[Measures, list[Term], bool], Values]] = {
    "sum": Measures._sum,
    "count": Measures._count,
    "avg": Measures._avg,
    "max": Measures._max,
    "min": Measures._min,
    "bool_and": Measures._min,
    "bool_or": Measures._max,
    "stddev": lambda s, t, a: s._spread(t, a, sample=True, root=True),
    "stddev_pop": lambda s, t, a: s._spread(t, a, sample=False, root=True),
    "var": lambda s, t, a: s._spread(t, a, sample=True, root=False),
    "var_pop": lambda s, t, a: s._spread(t, a, sample=False, root=False),
}

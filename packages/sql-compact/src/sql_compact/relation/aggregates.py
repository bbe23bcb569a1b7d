"""GROUP BY and aggregates: reductions over the row axes that are not group keys.

Three things are kept apart: whether a group exists (some row is present), whether its
aggregate is NULL (no row contributes a value), and how the value is accumulated. Absent
rows contribute the function's identity, by ``where``, never by multiplying with a mask.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..domain import Domain, Explicit, Range, distinct_keys, positions
from ..dtypes import DType
from ..errors import UnsupportedSQL
from ..plan import nodes as n
from ..tensor.graph import scalar_value
from ..tensor.labelled import Axis, Tensor, TensorBuilder
from .expressions import Expressions
from .joins import null_column
from .model import Bag, Coded, Column, Coordinate, Relation, Values, bind, rename

#: Aggregates that are one of the values.
_EXTREMES = ("min", "max")
_BOOLEANS = Explicit(np.array([False, True]))


@dataclass(frozen=True, slots=True)
class _Grouped:
    """One part of the input with its rows assigned to groups.

    Attributes:
        relation: over the group axes and the axes that are reduced away.
        rows: which points are rows of the group at hand (None: all).
        reduced: the axes that are not group keys.
        partial: a group may exist without any of these rows.
    """

    relation: Relation
    rows: Tensor | None
    reduced: tuple[Axis, ...]
    partial: bool = False


class Aggregates:
    """Folds GROUP BY, DISTINCT, and aggregates over whole window partitions."""

    def __init__(self, builder: TensorBuilder) -> None:
        self._b = builder
        self._expressions = Expressions(builder, self.window)

    @property
    def expressions(self) -> Expressions:
        return self._expressions

    # --- GROUP BY ---------------------------------------------------------------------

    def aggregate(
        self, bag: Bag, keys: Sequence[n.Expression], measures: Sequence[n.Measure]
    ) -> Bag:
        """One row for each group with a row; without keys, one row always."""
        if not keys:
            parts = [_Grouped(r, r.present, r.axes) for r in bag.parts]
            columns = tuple(self._measure(m, parts, always=True) for m in measures)
            return Bag((Relation((), columns),))
        keyed = [(part, [self._key(k, part) for k in keys]) for part in bag.parts]
        patterns: dict[tuple[bool, ...], list[tuple[Relation, list[Column]]]] = {}
        for part, columns in keyed:
            for split in self._split_nulls(part, columns):
                patterns.setdefault(split[0], []).append(split[1:])
        results = [
            self._groups(pattern, parts, measures, len(keys)) for pattern, parts in patterns.items()
        ]
        return Bag(tuple(results))

    def _key(self, expression: n.Expression, relation: Relation) -> Column:
        column = self._expressions.evaluate(expression, relation)
        if isinstance(column, Values) and column.value.dtype.is_bool:
            code = self._b.cast(column.value, DType.INT64)
            return Coded(code, _BOOLEANS, column.valid)
        if isinstance(column, Values):
            value = scalar_value(column.value.node)
            if value is None:
                coded = self._expressions.over_domain(expression, relation)
                if coded is not None:
                    return coded
                raise UnsupportedSQL(
                    "GROUP BY",
                    "a group key must be a dimension, a column with a declared domain, an "
                    "expression of one of these, or boolean",
                    "Declare the column's domain when registering its table",
                )
            domain = Explicit(np.asarray([value], dtype=column.value.dtype.numpy))
            return Coded(self._b.constant(0, DType.INT64), domain, column.valid)
        return column

    def _split_nulls(
        self, part: Relation, keys: list[Column]
    ) -> list[tuple[tuple[bool, ...], Relation, list[Column]]]:
        """NULL keys form groups of their own: split the rows by which keys are NULL."""
        nullable = [i for i, k in enumerate(keys) if k.valid is not None]
        splits = []
        for choice in itertools.product((False, True), repeat=len(nullable)):
            masks = [part.present]
            columns = list(keys)
            for i, is_null in zip(nullable, choice, strict=True):
                key = keys[i]
                assert isinstance(key, Coded) and key.valid is not None
                masks.append(self._b.map("not", key.valid) if is_null else key.valid)
                columns[i] = Coded(key.code, key.domain)
            present = self._b.known_mask(self._b.conjunction(masks))
            if self._b.is_never(present):
                continue
            pattern = [False] * len(keys)
            for i, is_null in zip(nullable, choice, strict=True):
                pattern[i] = is_null
            splits.append((tuple(pattern), Relation(part.axes, part.columns, present), columns))
        if not splits:
            never = self._b.constant(False, DType.BOOL)
            plain = [Coded(k.code, k.domain) if isinstance(k, Coded) else k for k in keys]
            empty = Relation(part.axes, part.columns, never)
            splits.append(((False,) * len(keys), empty, plain))
        return splits

    def _groups(
        self,
        nulls: tuple[bool, ...],
        parts: list[tuple[Relation, list[Column]]],
        measures: Sequence[n.Measure],
        width: int,
    ) -> Relation:
        axes: list[Axis | None] = []
        for i in range(width):
            columns = [keys[i] for _, keys in parts]
            axes.append(None if nulls[i] else self._group_axis(columns, axes))
        grouped = [self._assign(part, keys, axes) for part, keys in parts]
        present = self._any_row(grouped)
        row_axes = tuple(dict.fromkeys(a for a in axes if a is not None))
        key_columns = tuple(
            null_column(self._b, parts[0][1][i]) if axis is None else Coordinate(axis)
            for i, axis in enumerate(axes)
        )
        packed = grouped
        if any(m.function in _EXTREMES for m in measures):
            packed = [self._assign(*self._packed(part, keys, axes), axes) for part, keys in parts]
        columns = tuple(
            self._measure(m, packed if m.function in _EXTREMES else grouped, always=False)
            for m in measures
        )
        return Relation(row_axes, key_columns + columns, self._b.known_mask(present))

    def _group_axis(self, columns: list[Column], taken: list[Axis | None]) -> Axis:
        """The axis of one key: the parts' own where they agree, else a common one."""
        first = columns[0]
        if len(columns) == 1 and isinstance(first, Coordinate):
            return first.axis
        domain = _common_domain([c.domain for c in columns if not isinstance(c, Values)])
        name = next((c.axis.name for c in columns if isinstance(c, Coordinate)), "key")
        return Axis(name, domain)

    def _assign(self, part: Relation, keys: list[Column], axes: list[Axis | None]) -> _Grouped:
        """Put the part's rows on the group axes: rename, or select by code."""
        rows = part.present
        names: dict[Axis, Axis] = {}
        selections: list[tuple[Column, Axis]] = []
        for key, axis in zip(keys, axes, strict=True):
            if axis is None:
                continue
            if (
                isinstance(key, Coordinate)
                and key.domain == axis.domain
                and names.setdefault(key.axis, axis) is axis
            ):
                continue
            selections.append((key, axis))
        relation = rename(self._b, Relation(part.axes, part.columns, rows), names)
        rows = relation.present
        for key, axis in selections:
            code = self._renamed_code(key, axis.domain, names)
            hit = self._b.map("equal", code, self._b.iota(axis))
            rows = self._b.conjunction((rows, hit))
        group_axes = {a for a in axes if a is not None}
        reduced = tuple(a for a in relation.axes if a not in group_axes)
        relation = Relation(relation.axes, relation.columns, rows)
        return _Grouped(relation, rows, reduced)

    def _packed(
        self, part: Relation, keys: list[Column], axes: list[Axis | None]
    ) -> tuple[Relation, list[Column]]:
        """Rows of one axis arranged by group, where keys depend on that axis alone.

        An extreme has no contraction to keep a selection symbolic in: by a mask each group
        would read every row. Arranged by group each row is read once, and groups of unequal
        size are filled up; where that more than doubles the rows they stay as they are.
        """
        shown = {k.axis for k in keys if isinstance(k, Coordinate)}
        chosen: dict[int, np.ndarray] = {}
        source: Axis | None = None
        for i, (key, axis) in enumerate(zip(keys, axes, strict=True)):
            if not isinstance(key, Coded) or axis is None or axis in axes[:i]:
                continue
            code = self._renamed_code(key, axis.domain, {})
            value = self._b.static.value(code.node)
            if value is None or len(code.axes) != 1 or code.axes[0] in shown:
                continue
            if source is None or source is code.axes[0]:
                source = code.axes[0]
                chosen[i] = value.numpy()
        if source is None:
            return part, keys
        groups = tuple(a for i in chosen if (a := axes[i]) is not None)
        shape = tuple(a.size for a in groups)
        flat = np.ravel_multi_index(tuple(chosen.values()), shape)
        counts = np.bincount(flat, minlength=math.prod(shape))
        width = int(counts.max(initial=0))
        if not width or width * len(counts) > 2 * source.size:
            return part, keys
        order = np.argsort(flat, kind="stable")
        starts = np.cumsum(counts) - counts
        slots = np.arange(width)
        filled = slots < counts[:, None]
        index = order[np.where(filled, starts[:, None] + slots, 0)].reshape(*shape, width)
        inner = Axis(source.name, Range(width))
        place = (*groups, inner)
        position = Tensor(self._b.graph.data(index, DType.INT64), place)
        whole = Relation(part.axes, (*part.columns, *keys), part.present)
        moved = bind(self._b, whole, source, position)
        mask = None
        if not filled.all():
            mask = Tensor(self._b.graph.data(filled.reshape(index.shape), DType.BOOL), place)
        present = self._b.conjunction((moved.present, mask))
        columns, arranged = moved.columns[: len(part.columns)], list(moved.columns)
        arranged = arranged[len(part.columns) :]
        for i, axis in zip(chosen, groups, strict=True):
            arranged[i] = Coordinate(axis)
        return Relation((*moved.axes, *place), columns, present), arranged

    def _renamed_code(self, key: Column, domain: Domain, names: dict[Axis, Axis]) -> Tensor:
        assert not isinstance(key, Values)
        code = self._b.rename(self._expressions.code_of(key), names)
        if key.domain == domain:
            return code
        found = positions(key.domain.values(), domain)
        return self._b.lookup(self._b.graph.data(found, DType.INT64), code)

    def _any_row(self, parts: list[_Grouped]) -> Tensor | None:
        """Where a group has a row; None: everywhere."""
        masks = []
        for part in parts:
            if any(a.size == 0 for a in part.reduced):
                masks.append(self._b.constant(False, DType.BOOL))
            elif part.rows is None:
                return None
            else:
                masks.append(self._b.reduce("any", part.rows, part.reduced))
        return self._any_of(masks)

    def _any_of(self, masks: list[Tensor]) -> Tensor | None:
        result = masks[0]
        for mask in masks[1:]:
            result = self._b.map("or", result, mask)
        return self._b.known_mask(result)

    # --- measures ---------------------------------------------------------------------

    def _measure(self, measure: n.Measure, parts: list[_Grouped], always: bool) -> Values:
        """One aggregate over the groups; ``always``: the row exists without any input row."""
        name = measure.function.lower()
        if measure.distinct and name not in ("min", "max"):
            measure, part = self._distinct(measure, parts)
            parts = [part]
        function = _FUNCTIONS.get(name)
        if function is None:
            raise UnsupportedSQL(name.upper(), "this aggregate has no tensor form")
        terms = [self._term(measure, part) for part in parts]
        return function(self, terms, always)

    def _distinct(self, measure: n.Measure, parts: list[_Grouped]) -> tuple[n.Measure, _Grouped]:
        """The plain measure over rows that are each group's distinct values."""
        operator = f"{measure.function.upper()}(DISTINCT ...)"
        if len(measure.arguments) != 1:
            raise UnsupportedSQL(operator, "it has more than one argument")
        argument = measure.arguments[0]
        keyed = []
        for part in parts:
            try:
                keyed.append(self._key(argument, part.relation))
            except UnsupportedSQL as error:
                raise UnsupportedSQL(
                    operator,
                    "its argument must be a dimension, a column with a declared domain, an "
                    "expression of one of these, or boolean",
                    error.hint,
                ) from error
        axis = Axis("distinct", _common_domain([k.domain for k in keyed]))
        present: Tensor | None = None
        for part, key in zip(parts, keyed, strict=True):
            mask = part.rows
            if measure.filter is not None:
                condition = self._expressions.condition(measure.filter, part.relation)
                mask = self._b.conjunction((mask, condition))
            code = self._renamed_code(key, axis.domain, {})
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
        return plain, _Grouped(relation, present, (axis,), True)

    def _term(self, measure: n.Measure, part: _Grouped) -> _Term:
        mask = part.rows
        if measure.filter is not None:
            condition = self._expressions.condition(measure.filter, part.relation)
            mask = self._b.conjunction((mask, condition))
        value: Tensor | None = None
        valid: Tensor | None = None
        if measure.arguments:
            column = self._expressions.evaluate(measure.arguments[0], part.relation)
            valid = column.valid
            if measure.function != "count":
                value = self._expressions.value_of(column).value
        filtered = part.partial or measure.filter is not None or valid is not None
        mask = self._b.known_mask(self._b.conjunction((mask, valid)))
        return _Term(value, mask, part.reduced, filtered)

    def _contributes(self, terms: list[_Term], always: bool) -> Tensor | None:
        """Where some row contributes a value, or None where each existing group has one."""
        if not always and not any(t.filtered for t in terms):
            return None
        masks = []
        for term in terms:
            if any(a.size == 0 for a in term.reduced):
                masks.append(self._b.constant(False, DType.BOOL))
            elif term.mask is None:
                return None
            else:
                masks.append(self._b.reduce("any", term.mask, term.reduced))
        return self._any_of(masks)

    def _combine(
        self, function: str, terms: list[_Term], identity: bool | int | float, merge: str
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
        return self._b.map("multiply", total, self._b.constant(times, total.dtype))

    def _sum_of(self, terms: list[_Term]) -> Tensor:
        return self._combine("sum", terms, 0, "add")

    def _count_of(self, terms: list[_Term]) -> Tensor:
        ones = []
        for term in terms:
            one = self._b.constant(1, DType.INT64)
            if term.mask is not None:
                one = self._b.cast(term.mask, DType.INT64)
            ones.append(_Term(one, None, term.reduced, term.filtered))
        total = self._sum_of(ones)
        value = self._b.static.value(total.node)
        if value is not None and value.numel() and bool((value == value.reshape(-1)[0]).all()):
            return self._b.constant(value.reshape(-1)[0].item(), DType.INT64)
        return total

    def _cast_terms(self, terms: list[_Term], dtype: Callable[[DType], DType]) -> list[_Term]:
        return [
            _Term(self._b.cast(t.value, dtype(t.value.dtype)), t.mask, t.reduced, t.filtered)
            for t in terms
        ]

    def _sum(self, terms: list[_Term], always: bool) -> Values:
        def wide(dtype: DType) -> DType:
            return DType.FLOAT64 if dtype.is_float else DType.INT64

        total = self._sum_of(self._cast_terms(terms, wide))
        return Values(total, self._contributes(terms, always))

    def _count(self, terms: list[_Term], always: bool) -> Values:
        return Values(self._count_of(terms))

    def _mean(self, terms: list[_Term]) -> Tensor:
        terms = self._cast_terms(terms, lambda _: DType.FLOAT64)
        count = self._b.cast(self._count_of(terms), DType.FLOAT64)
        return self._b.map("divide", self._sum_of(terms), count)

    def _avg(self, terms: list[_Term], always: bool) -> Values:
        return Values(self._mean(terms), self._contributes(terms, always))

    def _extreme(self, name: str, terms: list[_Term], always: bool) -> Values:
        assert terms[0].value is not None
        dtype = terms[0].value.dtype
        if dtype.is_bool:
            ordered = self._cast_terms(terms, lambda _: DType.INT8)
            extreme = self._extreme(name, ordered, always)
            return Values(self._b.cast(extreme.value, DType.BOOL), extreme.valid)
        sign = -1 if name == "max" else 1
        if dtype.is_float:
            identity: int | float = sign * math.inf
        else:
            info = np.iinfo(dtype.numpy)
            identity = info.min if name == "max" else info.max
        merge = "maximum" if name == "max" else "minimum"
        value = self._combine(name, terms, identity, merge)
        return Values(value, self._contributes(terms, always))

    def _max(self, terms: list[_Term], always: bool) -> Values:
        return self._extreme("max", terms, always)

    def _min(self, terms: list[_Term], always: bool) -> Values:
        return self._extreme("min", terms, always)

    def _spread(self, terms: list[_Term], always: bool, sample: bool, root: bool) -> Values:
        """Variance in two passes: mean, then mean squared deviation."""
        terms = self._cast_terms(terms, lambda _: DType.FLOAT64)
        mean = self._mean(terms)
        squares = []
        for term in terms:
            deviation = self._b.map("subtract", term.value, mean)
            square = self._b.map("multiply", deviation, deviation)
            squares.append(_Term(square, term.mask, term.reduced, term.filtered))
        count = self._count_of(terms)
        if sample:
            count = self._b.map("subtract", count, self._b.constant(1, DType.INT64))
        variance = self._b.map("divide", self._sum_of(squares), self._b.cast(count, DType.FLOAT64))
        valid = self._contributes(terms, always)
        if sample:
            enough = self._b.map("gt", count, self._b.constant(0, DType.INT64))
            valid = self._b.known_mask(self._b.conjunction((valid, enough)))
        return Values(self._b.map("sqrt", variance) if root else variance, valid)

    # --- windows ----------------------------------------------------------------------

    def window(self, window: n.Window, relation: Relation) -> Column:
        """An aggregate over the row's partition, at every row."""
        keys = [self._key(k, relation) for k in window.partition]
        for key in keys:
            if key.valid is not None:
                raise UnsupportedSQL("PARTITION BY", "a partition key that may be NULL")
        axes: list[Axis | None] = []
        for key in keys:
            axes.append(self._group_axis([key], axes))
        measure = n.Measure(window.function, window.arguments, False, None)
        if axes:
            part = self._assign(relation, keys, axes)
        else:
            part = _Grouped(relation, relation.present, relation.axes)
        result = self._measure(measure, [part], always=False)
        spread = Relation(tuple(a for a in axes if a is not None), (result,))
        for key, axis in zip(keys, axes, strict=True):
            if isinstance(key, Coded) and axis is not None:
                spread = bind(self._b, spread, axis, key.code)
        return spread.columns[0]


@dataclass(frozen=True, slots=True)
class _Term:
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


def _common_domain(domains: list[Domain]) -> Domain:
    """The domain itself where all agree, else the union of the values in order."""
    if all(d == domains[0] for d in domains):
        return domains[0]
    values: dict[object, Any] = {}
    for domain in domains:
        array = domain.values()
        values.update(zip(distinct_keys(array), array, strict=True))
    if not values:
        return domains[0]
    merged = np.asarray(sorted(values.values()))
    if merged.dtype.kind in "iu" and np.array_equal(merged, np.arange(merged[0], merged[-1] + 1)):
        return Range(len(merged), int(merged[0]))
    return Explicit(merged)


_FUNCTIONS: dict[str, Callable[[Aggregates, list[_Term], bool], Values]] = {
    "sum": Aggregates._sum,
    "count": Aggregates._count,
    "avg": Aggregates._avg,
    "max": Aggregates._max,
    "min": Aggregates._min,
    "stddev": lambda s, t, a: s._spread(t, a, sample=True, root=True),
    "stddev_pop": lambda s, t, a: s._spread(t, a, sample=False, root=True),
    "var": lambda s, t, a: s._spread(t, a, sample=True, root=False),
    "var_pop": lambda s, t, a: s._spread(t, a, sample=False, root=False),
}

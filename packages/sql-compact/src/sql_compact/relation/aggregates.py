"""GROUP BY and aggregates: reductions over the row axes that are not group keys.

Three things are kept apart: whether a group exists (some row is present), whether its
aggregate is NULL (no row contributes a value), and how the value is accumulated.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..plan import nodes as n
from ..tensor.labelled import Axis, Tensor, TensorBuilder
from .expressions import Expressions
from .groups import Grouped, Groups
from .joins import null_column
from .measures import Measures
from .model import Bag, Column, Coordinate, Relation, bind

#: Aggregates that are one of the values.
_EXTREMES = ("min", "max")


class Aggregates:
    """Folds GROUP BY, DISTINCT, and aggregates over whole window partitions."""

    def __init__(self, builder: TensorBuilder) -> None:
        self._b = builder
        self._expressions = Expressions(builder)
        self._groups = Groups(builder, self._expressions)
        self._measures = Measures(builder, self._expressions, self._groups)

    @property
    def expressions(self) -> Expressions:
        return self._expressions

    def aggregate(
        self, bag: Bag, keys: Sequence[n.Expression], measures: Sequence[n.Measure]
    ) -> Bag:
        """One row for each group with a row; without keys, one row always."""
        if not keys:
            parts = [Grouped(r, r.present, r.axes) for r in bag.parts]
            columns = tuple(self._measures.measure(m, parts, always=True) for m in measures)
            return Bag((Relation((), columns),))
        keyed = [(part, [self._groups.key(k, part) for k in keys]) for part in bag.parts]
        patterns: dict[tuple[bool, ...], list[tuple[Relation, list[Column]]]] = {}
        for part, columns in keyed:
            for split in self._groups.split_nulls(part, columns):
                patterns.setdefault(split[0], []).append(split[1:])
        results = [
            self._grouped(pattern, parts, measures, len(keys))
            for pattern, parts in patterns.items()
        ]
        return Bag(tuple(results))

    def _grouped(
        self,
        nulls: tuple[bool, ...],
        parts: list[tuple[Relation, list[Column]]],
        measures: Sequence[n.Measure],
        width: int,
    ) -> Relation:
        axes: list[Axis | None] = []
        for i in range(width):
            columns = [keys[i] for _, keys in parts]
            axes.append(None if nulls[i] else self._groups.group_axis(columns))
        grouped = [self._groups.assign(part, keys, axes) for part, keys in parts]
        present = self._groups.any_row((g.rows, g.reduced) for g in grouped)
        row_axes = tuple(dict.fromkeys(a for a in axes if a is not None))
        key_columns = tuple(
            null_column(self._b, parts[0][1][i]) if axis is None else Coordinate(axis)
            for i, axis in enumerate(axes)
        )
        packed = grouped
        if any(m.function in _EXTREMES for m in measures):
            packed = [
                self._groups.assign(*self._groups.packed(part, keys, axes), axes)
                for part, keys in parts
            ]
        columns = tuple(
            self._measures.measure(m, packed if m.function in _EXTREMES else grouped, always=False)
            for m in measures
        )
        return Relation(row_axes, key_columns + columns, self._b.known_mask(present))

    def windows(self, window: n.Window, bag: Bag) -> list[Column]:
        """An aggregate over each row's partition, at every row of each part of the bag.

        A partition has rows of all parts; NULL keys form partitions of their own.
        """
        patterns: dict[tuple[bool, ...], list[tuple[int, Relation, list[Column]]]] = {}
        masks: dict[tuple[bool, ...], dict[int, Tensor | None]] = {}
        for at, part in enumerate(bag.parts):
            keys = [self._groups.key(k, part) for k in window.partition]
            for pattern, rows, columns in self._groups.split_nulls(part, keys):
                patterns.setdefault(pattern, []).append((at, rows, columns))
                masks.setdefault(pattern, {})[at] = self._groups.pattern_mask(keys, pattern)
        measure = n.Measure(window.function, window.arguments, False, None)
        found: list[list[tuple[Tensor | None, Column]]] = [[] for _ in bag.parts]
        for pattern, members in patterns.items():
            axes: list[Axis | None] = []
            for i, is_null in enumerate(pattern):
                columns = [keys[i] for _, _, keys in members]
                axes.append(None if is_null else self._groups.group_axis(columns))
            grouped = [self._window_rows(rows, keys, axes) for _, rows, keys in members]
            result = self._measures.measure(measure, grouped, always=False)
            whole = tuple(dict.fromkeys(a for a in axes if a is not None))
            for at, _, keys in members:
                column = self._spread(Relation(whole, (result,)), keys, axes)
                found[at].append((masks[pattern][at], column))
        return [self._by_pattern(columns) for columns in found]

    def _window_rows(self, rows: Relation, keys: list[Column], axes: list[Axis | None]) -> Grouped:
        if any(axis is not None for axis in axes):
            return self._groups.assign(rows, keys, axes)
        return Grouped(rows, rows.present, rows.axes)

    def _spread(self, relation: Relation, keys: list[Column], axes: list[Axis | None]) -> Column:
        """The result of each partition at the rows with its keys."""
        for key, axis in zip(keys, axes, strict=True):
            if axis is None or (isinstance(key, Coordinate) and key.axis is axis):
                continue
            code = self._groups.renamed_code(key, axis.domain, {})
            relation = bind(self._b, relation, axis, code)
        return relation.columns[0]

    def _by_pattern(self, found: list[tuple[Tensor | None, Column]]) -> Column:
        """Each row's result: that of the partitions whose keys are NULL where its own are."""
        result = found[-1][1]
        for mask, column in reversed(found[:-1]):
            if mask is not None:
                result = self._expressions.choose_column(mask, column, result)
        return result

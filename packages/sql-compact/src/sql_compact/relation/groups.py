"""Rows assigned to groups: the keys of GROUP BY, DISTINCT and PARTITION BY as axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..domain import Domain, Explicit, Range, common_domain, positions
from ..dtypes import DType
from ..errors import UnsupportedSQL
from ..plan import nodes as n
from ..tensor.graph import scalar_value
from ..tensor.labelled import Axis, Tensor, TensorBuilder
from .expressions import Expressions
from .model import Coded, Column, Coordinate, Relation, Values, bind, rename

_BOOLEANS = Explicit(np.array([False, True]))


@dataclass(frozen=True, slots=True)
class Grouped:
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


class Groups:
    """Puts rows on the axes of their group keys."""

    def __init__(self, builder: TensorBuilder, expressions: Expressions) -> None:
        self._b = builder
        self._expressions = expressions

    def key(self, expression: n.Expression, relation: Relation) -> Column:
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

    def split_nulls(
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

    def pattern_mask(self, keys: list[Column], pattern: tuple[bool, ...]) -> Tensor | None:
        """The rows whose keys are NULL exactly where the pattern says; None: all."""
        masks = []
        for key, is_null in zip(keys, pattern, strict=True):
            if key.valid is not None:
                masks.append(self._b.map("not", key.valid) if is_null else key.valid)
        return self._b.conjunction(masks)

    def group_axis(self, columns: list[Column]) -> Axis:
        """The axis of one key: the parts' own where they agree, else a common one."""
        first = columns[0]
        if len(columns) == 1 and isinstance(first, Coordinate):
            return first.axis
        domain = common_domain([c.domain for c in columns if not isinstance(c, Values)])
        name = next((c.axis.name for c in columns if isinstance(c, Coordinate)), "key")
        return Axis(name, domain)

    def assign(self, part: Relation, keys: list[Column], axes: list[Axis | None]) -> Grouped:
        """Put the part's rows on the group axes: rename, or select by code."""
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
        relation = rename(self._b, part, names)
        rows = relation.present
        for key, axis in selections:
            code = self.renamed_code(key, axis.domain, names)
            hit = self._b.map("equal", code, self._b.iota(axis))
            rows = self._b.conjunction((rows, hit))
        group_axes = {a for a in axes if a is not None}
        reduced = tuple(a for a in relation.axes if a not in group_axes)
        relation = Relation(relation.axes, relation.columns, rows)
        return Grouped(relation, rows, reduced)

    def packed(
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
            code = self.renamed_code(key, axis.domain, {})
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

    def renamed_code(self, key: Column, domain: Domain, names: dict[Axis, Axis]) -> Tensor:
        assert not isinstance(key, Values)
        code = self._b.rename(self._expressions.code_of(key), names)
        if key.domain == domain:
            return code
        found = positions(key.domain.values(), domain)
        return self._b.lookup(self._b.graph.data(found, DType.INT64), code)

    def any_row(self, parts: Iterable[tuple[Tensor | None, tuple[Axis, ...]]]) -> Tensor | None:
        """Where a group has a row; None: everywhere.

        Args:
            parts: rows (None: all), and the axes of them that are reduced away.
        """
        masks = []
        for rows, reduced in parts:
            if any(a.size == 0 for a in reduced):
                masks.append(self._b.constant(False, DType.BOOL))
            elif rows is None:
                return None
            else:
                masks.append(self._b.reduce("any", rows, reduced))
        result = masks[0]
        for mask in masks[1:]:
            result = self._b.map("or", result, mask)
        return self._b.known_mask(result)

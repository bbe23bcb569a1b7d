"""Fold a query plan into relations over one tensor graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from ..domain import Explicit
from ..dtypes import DType, dtype_of_arrow
from ..errors import UnknownColumn, UnknownTable, UnsupportedSQL
from ..ordering import OrderKey, Step
from ..plan import nodes as n
from ..tensor.labelled import TensorBuilder
from .aggregates import Aggregates
from .equalities import literal_value
from .joins import Joins, null_column
from .model import Bag, Coded, Column, Relation, Table, Values, bind, fresh, nullable

#: DataFusion's names of what all tables are in, which may be written before a table's own.
_OWN_NAMES = ("datafusion.", "public.")


class Folder:
    """Folds plans over a catalog of tables that are already folded."""

    def __init__(self, builder: TensorBuilder) -> None:
        self._b = builder
        self._aggregates = Aggregates(builder)
        self._expressions = self._aggregates.expressions
        self._joins = Joins(builder, self._expressions)

    def fold(self, query: n.Query, catalog: Mapping[str, Table]) -> Table:
        """The query as a table.

        Raises:
            UnsupportedSQL: an operator has no tensor form; it is named with the reason.
            UnknownTable: a table is not in the catalog.
        """
        return Table(query.names, self._fold(query.root, catalog))

    def fold_ordered(self, query: n.Query, catalog: Mapping[str, Table]) -> Table:
        """The query as a table whose ORDER BY, LIMIT and OFFSET are left to its rows.

        Raises:
            As :meth:`fold`.
        """
        bag, _, steps = self._fold_top(query.root, catalog)
        return Table(query.names, bag, steps)

    def _fold_top(
        self, plan: n.Plan, catalog: Mapping[str, Table]
    ) -> tuple[Bag, int, tuple[Step, ...]]:
        """A plan, how many hidden columns of sort keys follow its own, and the steps by them.

        What is computed from each row by itself may as well be computed before ordering.
        """
        match plan:
            case n.Sort(source, keys):
                bag, hidden, steps = self._fold_top(source, catalog)
                expressions = tuple(k.expression for k in keys)
                bag = self._with_computed(bag, expressions, catalog)
                order = tuple(
                    OrderKey(hidden + i, key.descending, key.nulls_first)
                    for i, key in enumerate(keys)
                )
                return bag, hidden + len(keys), (*steps, Step(order))
            case n.Fetch(source, offset, count):
                bag, hidden, steps = self._fold_top(source, catalog)
                if steps and not steps[-1].restricts:
                    return bag, hidden, (*steps[:-1], Step(steps[-1].keys, offset, count))
                return bag, hidden, (*steps, Step((), offset, count))
            case n.Emit(source, columns):
                bag, hidden, steps = self._fold_top(source, catalog)
                places = (*columns, *_last(bag, hidden))
                return _pick(bag, places), hidden, steps
            case n.Project(source, expressions):
                bag, hidden, steps = self._fold_top(source, catalog)
                if any(step.restricts for step in steps) and any(
                    _has(e, n.Window) for e in expressions
                ):
                    raise _limit_inside()
                keys = _last(bag, hidden)
                bag = self._with_computed(bag, expressions, catalog)
                total = len(bag.parts[0].columns)
                own = [i for i in range(total) if i not in keys]
                return _pick(bag, (*own, *keys)), hidden, steps
        return self._fold(plan, catalog), 0, ()

    def _with_computed(
        self, bag: Bag, expressions: tuple[n.Expression, ...], catalog: Mapping[str, Table]
    ) -> Bag:
        width = len(bag.parts[0].columns)
        bag, expressions = self._lifted(bag, expressions, catalog)
        return bag.map(lambda r: self._project(r, expressions, width))

    def _fold(self, plan: n.Plan, catalog: Mapping[str, Table]) -> Bag:
        match plan:
            case n.Read():
                return self._read(plan, catalog)
            case n.Values():
                return self._values(plan)
            case n.Emit(source, columns):
                return _pick(self._fold(source, catalog), columns)
            case n.Project(source, expressions):
                return self._with_computed(self._fold(source, catalog), expressions, catalog)
            case n.Filter(source, condition):
                bag = self._fold(source, catalog)
                width = len(bag.parts[0].columns)
                bag, (condition,) = self._lifted(bag, (condition,), catalog)
                filtered = bag.map(lambda r: self._joins.filter(r, condition))
                return filtered.map(lambda r: r.with_columns(r.columns[:width]))
            case n.Join():
                return self._join(plan, catalog)
            case n.Aggregate():
                return self._aggregate(plan, catalog)
            case n.UnionAll(inputs):
                return Bag(tuple(p for i in inputs for p in self._fold(i, catalog).parts))
            case n.Sort(source):
                return self._fold(source, catalog)  # the order of a subquery's rows means nothing
            case n.Fetch():
                raise _limit_inside()
        raise UnsupportedSQL("plan", f"{type(plan).__name__} is not folded")

    def _project(
        self, relation: Relation, expressions: tuple[n.Expression, ...], width: int
    ) -> Relation:
        computed = tuple(self._expressions.evaluate(e, relation) for e in expressions)
        return relation.with_columns(relation.columns[:width] + computed)

    def _join(self, join: n.Join, catalog: Mapping[str, Table]) -> Bag:
        left, right = self._fold(join.left, catalog), self._fold(join.right, catalog)
        if join.may_be_not_in:
            self._joins.refuse_nulls(left, right, join.condition)
        return self._joins.join(join.kind, left, right, join.condition)

    def _aggregate(self, plan: n.Aggregate, catalog: Mapping[str, Table]) -> Bag:
        bag = self._fold(plan.input, catalog)
        operands = [e for m in plan.measures for e in (*m.arguments, m.filter) if e is not None]
        bag, replaced = self._lifted(bag, tuple(operands), catalog)
        new = iter(replaced)
        measures = tuple(
            n.Measure(
                m.function,
                tuple(next(new) for _ in m.arguments),
                m.distinct,
                None if m.filter is None else next(new),
            )
            for m in plan.measures
        )
        return self._aggregates.aggregate(bag, plan.keys, measures)

    def _lifted(
        self, bag: Bag, expressions: tuple[n.Expression, ...], catalog: Mapping[str, Table]
    ) -> tuple[Bag, tuple[n.Expression, ...]]:
        """Scalar subqueries and windows as further columns, and the expressions reading them."""
        width = len(bag.parts[0].columns)
        columns: dict[n.Plan, Column] = {}

        def lifted(expression: n.Expression) -> n.Expression:
            if not _has(expression, n.ScalarSubquery):
                return expression
            if not isinstance(expression, n.ScalarSubquery):
                return n.map_operands(expression, lifted)
            plan = expression.plan
            if plan not in columns:
                columns[plan] = self._only_value(self._fold(plan, catalog))
            return n.ColumnRef(width + list(columns).index(plan))

        replaced = tuple(map(lifted, expressions))
        extended = bag.map(lambda r: r.with_columns(r.columns + tuple(columns.values())))
        return self._with_windows(extended, replaced)

    def _with_windows(
        self, bag: Bag, expressions: tuple[n.Expression, ...]
    ) -> tuple[Bag, tuple[n.Expression, ...]]:
        """Windows as further columns of the bag, and the expressions reading them."""
        width = len(bag.parts[0].columns)
        found: dict[n.Window, list[Column]] = {}

        def lifted(expression: n.Expression) -> n.Expression:
            if not _has(expression, n.Window):
                return expression
            if not isinstance(expression, n.Window):
                return n.map_operands(expression, lifted)
            if expression not in found:
                found[expression] = self._aggregates.windows(expression, bag)
            return n.ColumnRef(width + list(found).index(expression))

        replaced = tuple(map(lifted, expressions))
        parts = [
            part.with_columns((*part.columns, *(columns[i] for columns in found.values())))
            for i, part in enumerate(bag.parts)
        ]
        return Bag(tuple(parts)), replaced

    def _only_value(self, bag: Bag) -> Column:
        """The value of a query with at most one row, NULL where there is none."""
        relation = bag.parts[0]
        if len(bag.parts) == 1 and any(a.size == 0 for a in relation.axes):
            return null_column(self._b, relation.columns[0])
        if len(bag.parts) > 1 or any(a.size != 1 for a in relation.axes):
            raise UnsupportedSQL(
                "scalar subquery",
                "it may have more than one row",
                "Aggregate it, or fix each of its dims by an equality",
            )
        for axis in relation.axes:
            relation = bind(self._b, relation, axis, self._b.constant(0, DType.INT64))
        column = relation.columns[0]
        return nullable(self._b, column, self._b.conjunction((column.valid, relation.present)))

    def _read(self, read: n.Read, catalog: Mapping[str, Table]) -> Bag:
        table = catalog.get(read.table)
        name = read.table
        for own in _OWN_NAMES:
            name = name.removeprefix(own)
            table = table or catalog.get(name)
        if table is None:
            known = ", ".join(sorted(catalog)) or "none"
            raise UnknownTable(f"table {read.table!r} is not registered; tables are: {known}")
        places = []
        for name in read.columns:
            if name not in table.names:
                raise UnknownColumn(
                    f"table {read.table!r} has no column {name!r}; it has: {', '.join(table.names)}"
                )
            places.append(table.names.index(name))
        return table.bag.map(
            lambda r: fresh(self._b, r.with_columns(tuple(r.columns[i] for i in places)))
        )

    def _values(self, plan: n.Values) -> Bag:
        if not plan.rows:
            return Bag((self._no_rows(plan),))
        empty = Relation((), ())
        rows = [
            Relation((), tuple(self._expressions.evaluate(e, empty) for e in row))
            for row in plan.rows
        ]
        return Bag(tuple(rows))

    def _no_rows(self, plan: n.Values) -> Relation:
        """A relation of the right types without any row."""
        columns: list[Column] = []
        for kind in plan.types:
            dtype = dtype_of_arrow(kind)
            if dtype is None:
                values = np.asarray([literal_value(n.Literal("" if _is_text(kind) else 0, kind))])
                columns.append(Coded(self._b.constant(0, DType.INT64), Explicit(values)))
            else:
                columns.append(Values(self._b.constant(0, dtype)))
        return Relation((), tuple(columns), self._b.constant(False, DType.BOOL))


def _limit_inside() -> UnsupportedSQL:
    return UnsupportedSQL(
        "LIMIT",
        "inside a query it selects rows by an order that dense arrays do not have",
        "Use it at the end of the whole query",
    )


def _has(expression: n.Expression, kind: type) -> bool:
    return any(isinstance(part, kind) for part in n.walk(expression))


def _pick(bag: Bag, places: Sequence[int]) -> Bag:
    return bag.map(lambda r: r.with_columns(tuple(r.columns[i] for i in places)))


def _last(bag: Bag, count: int) -> range:
    """Positions of the last ``count`` columns."""
    width = len(bag.parts[0].columns)
    return range(width - count, width)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view()

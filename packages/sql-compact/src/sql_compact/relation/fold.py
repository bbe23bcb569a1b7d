"""Fold a query plan into relations over one tensor graph."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..domain import Explicit
from ..dtypes import DType, dtype_of_arrow
from ..errors import UnknownColumn, UnknownTable, UnsupportedSQL
from ..plan import nodes as n
from ..tensor.labelled import TensorBuilder
from .aggregates import Aggregates
from .joins import Joins
from .model import Bag, Coded, Column, Relation, Table, Values, fresh


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

    def _fold(self, plan: n.Plan, catalog: Mapping[str, Table]) -> Bag:
        match plan:
            case n.Read():
                return self._read(plan, catalog)
            case n.Values():
                return self._values(plan)
            case n.Emit(source, columns):
                return self._fold(source, catalog).map(
                    lambda r: r.with_columns(tuple(r.columns[i] for i in columns))
                )
            case n.Project(source, expressions):
                return self._fold(source, catalog).map(lambda r: self._project(r, expressions))
            case n.Filter(source, condition):
                return self._fold(source, catalog).map(lambda r: self._joins.filter(r, condition))
            case n.Join(kind, left, right, condition):
                return self._joins.join(
                    kind, self._fold(left, catalog), self._fold(right, catalog), condition
                )
            case n.Aggregate(source, keys, measures):
                return self._aggregates.aggregate(self._fold(source, catalog), keys, measures)
            case n.UnionAll(inputs):
                return Bag(tuple(p for i in inputs for p in self._fold(i, catalog).parts))
            case n.Sort():
                raise UnsupportedSQL("ORDER BY", "dense arrays have no row order inside a query")
            case n.Fetch():
                raise UnsupportedSQL("LIMIT", "dense arrays have no row order inside a query")
        raise UnsupportedSQL("plan", f"{type(plan).__name__} is not folded")

    def _project(self, relation: Relation, expressions: tuple[n.Expression, ...]) -> Relation:
        computed = tuple(self._expressions.evaluate(e, relation) for e in expressions)
        return relation.with_columns(relation.columns + computed)

    def _read(self, read: n.Read, catalog: Mapping[str, Table]) -> Bag:
        table = catalog.get(read.table)
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
                values = np.zeros(1, dtype=kind.to_pandas_dtype())
                columns.append(Coded(self._b.constant(0, DType.INT64), Explicit(values)))
            else:
                columns.append(Values(self._b.constant(0, dtype)))
        return Relation((), tuple(columns), self._b.constant(False, DType.BOOL))

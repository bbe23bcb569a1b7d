"""Tracing: a SQL statement into one tensor graph.

Each common table expression is planned by itself, over the schemas of the tables before
it, and folded; so planning is linear in the length of the statement however often a
table is read. A statement that calls ``grad``, ``vjp`` or ``jvp`` is rewritten by ddxdb
first, with the tracer as its engine.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa

from .autodiff import TracingBackend, differentiate
from .errors import UnsupportedSQL
from .functions.macros import CommonTable, expand_macros, identifier, split_ctes
from .plan.depth import check_depth
from .plan.planner import Planned, Planner
from .plan.reader import read_plan
from .precision import Precision
from .relation.fold import Folder
from .relation.model import Table
from .tables import CompactTable
from .tensor.graph import Graph
from .tensor.labelled import TensorBuilder

_WORD = re.compile(r"\w+")
#: A call of a function that ddxdb replaces.
DERIVATIVE = re.compile(r"\b(grad|vjp|jvp)\s*\(", re.IGNORECASE)


def _needed(tables: Sequence[CommonTable], final: str) -> list[CommonTable]:
    """The common tables that the final query reads, directly or through others.

    A statement of a training step repeats the whole model to read one gradient; what it
    does not read need not be planned. A word that only looks like a name costs a plan.
    """
    words = set(_WORD.findall(final.lower()))
    needed = []
    for table in reversed(tables):
        name = identifier(table.name).lower()
        if name in words or not name.isidentifier():
            needed.append(table)
            words.update(_WORD.findall(table.body.lower()))
    return needed[::-1]


@contextmanager
def nesting_checked() -> Iterator[None]:
    """What nests deeper than Python recurses has no tensor form, as an error says.

    Raises:
        UnsupportedSQL: it does.
    """
    try:
        yield
    except RecursionError:
        raise UnsupportedSQL(
            "plan",
            f"it nests deeper than Python recurses (sys.getrecursionlimit() is "
            f"{sys.getrecursionlimit()})",
            "Split it into common tables (WITH)",
        ) from None


class Tracer:
    """Folds SQL statements over compact tables into one graph."""

    def __init__(self, tables: Mapping[str, CompactTable], precision: Precision) -> None:
        self.builder = TensorBuilder(Graph(precision))
        self._folder = Folder(self.builder)
        self._planner = Planner()
        self._catalog: dict[str, Table] = {}
        self.schemas: dict[str, pa.Schema] = {}
        for name, table in tables.items():
            self._catalog[name] = table.fold(self.builder)
            self._planner.add_table(name, table.schema, table.namespace)

    def define(self, name: str, table: Table, schema: pa.Schema) -> None:
        """Make a folded table known under ``name``."""
        self._catalog[name] = table
        self._planner.add_table(name, schema)

    def drop(self, name: str) -> None:
        self._catalog.pop(name, None)
        self._planner.drop_table(name)

    def trace(
        self, sql: str, keep: Sequence[str] = ()
    ) -> tuple[Table, pa.Schema, dict[str, Table]]:
        """Fold a statement: its rows, their schema, and the common tables named in ``keep``.

        Its derivatives are differentiated together, so those of one loss share one
        backward program.

        Raises:
            CompactError: the statement is invalid or cannot be folded.
        """
        check_depth(sql)
        with nesting_checked():
            return self._trace(sql, keep)

    def _trace(self, sql: str, keep: Sequence[str]) -> tuple[Table, pa.Schema, dict[str, Table]]:
        text = expand_macros(sql)
        if not DERIVATIVE.search(text):
            return self.query(text, keep)
        text = expand_macros(sql, differentiate=True)
        with differentiate(TracingBackend(self), text) as rewritten:
            return self.query(rewritten, keep)

    def query(
        self, sql: str, keep: Sequence[str] = ()
    ) -> tuple[Table, pa.Schema, dict[str, Table]]:
        """Fold a statement without derivatives; see :meth:`trace`. Its rows may be ordered."""
        tables, final = split_ctes(sql)
        kept: dict[str, Table] = {}
        with self._scope():
            for cte in _needed(tables, " ".join((final, *keep))):
                name = identifier(cte.name)
                table, schema = self.fold(self.plan(cte.body))
                if cte.columns is not None:
                    names = tuple(map(identifier, cte.columns))
                    table = Table(names, table.bag)
                    schema = pa.schema([f.with_name(n) for f, n in zip(schema, names, strict=True)])
                self.define(name, table, schema)
                if name in keep:
                    kept[name] = table
            planned = self.plan(final)
            query = read_plan(planned.message, planned.has_not_in)
            rows = self._folder.fold_ordered(query, self._catalog)
            return rows, planned.schema, kept

    def plan(self, sql: str) -> Planned:
        return self._planner.plan(sql)

    def fold(self, planned: Planned) -> tuple[Table, pa.Schema]:
        query = read_plan(planned.message, planned.has_not_in)
        return self._folder.fold(query, self._catalog), planned.schema

    def schema_of_plan(self, message: bytes) -> pa.Schema:
        return self._planner.schema_of_plan(message)

    def logical_plan(self, sql: str) -> str:
        return self._planner.logical_plan(sql)

    @contextmanager
    def _scope(self) -> Iterator[None]:
        """Names defined inside hide tables of the same name, and end with it."""
        catalog = dict(self._catalog)
        schemas = {name: self._planner.schema(name) for name in catalog}
        try:
            yield
        finally:
            for name in set(self._catalog) - set(catalog):
                self.drop(name)
            for name, table in catalog.items():
                schema = schemas[name]
                if self._catalog[name] is not table and schema is not None:
                    self.define(name, table, schema)

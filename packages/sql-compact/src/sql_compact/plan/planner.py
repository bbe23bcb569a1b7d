"""Planning with DataFusion: SQL text to a serialized plan, over schemas alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from ..errors import UnsupportedSQL
from ..functions.udf import register_functions
from .depth import session_config
from .messages import is_invalid, typed_error

if TYPE_CHECKING:
    from datafusion import DataFrame


@dataclass(frozen=True, slots=True)
class Planned:
    """A planned query.

    Attributes:
        message: its Substrait message.
        schema: of its output.
        has_not_in: whether it has a ``NOT IN (subquery)``, which its message does not tell
            from NOT EXISTS.
    """

    message: bytes
    schema: pa.Schema
    has_not_in: bool = False


class Planner:
    """A DataFusion session whose tables have a schema and no rows."""

    def __init__(self) -> None:
        # Only now: it takes long to import, and its functions bring in pandas.
        from datafusion import SessionContext

        self._session = SessionContext(session_config())
        register_functions(self._session)
        self._schemas: dict[str, pa.Schema] = {}

    def schema(self, name: str) -> pa.Schema | None:
        """The schema of a table, None if there is none of that name."""
        return self._schemas.get(name)

    def add_table(self, name: str, schema: pa.Schema, namespace: str | None = None) -> None:
        """Make ``name`` known, replacing a table of that name.

        Args:
            namespace: the SQL schema the table is in, the part of the name before its dot.
        """
        self.drop_table(name)
        empty = pa.RecordBatch.from_pylist([], schema=schema)
        self._session.register_record_batches(_quoted(name), [[empty]])
        self._schemas[name] = schema
        if namespace is not None:
            self._add_to_namespace(name, namespace)

    def _add_to_namespace(self, name: str, namespace: str) -> None:
        catalog = self._session.catalog()
        if namespace not in catalog.schema_names():
            from datafusion.catalog import Schema

            catalog.register_schema(namespace, Schema.memory_schema(self._session))
        schema = catalog.schema(namespace)
        local = name.removeprefix(f"{namespace}.")
        if local in schema.table_names():
            schema.deregister_table(local)
        schema.register_table(local, catalog.schema().table(name))

    def drop_table(self, name: str) -> None:
        if self._schemas.pop(name, None) is not None:
            self._session.deregister_table(_quoted(name))

    def plan(self, sql: str) -> Planned:
        """Plan a query.

        Raises:
            UnknownTable, UnknownColumn, InvalidSQL: what DataFusion says, by kind.
            UnsupportedSQL: the plan's message would not say all that the query does.
        """
        try:
            frame = self._session.sql(sql)
        except Exception as error:
            raise typed_error(error, sql) from error
        _refuse_lost(frame, sql)
        from datafusion.substrait import Producer

        try:
            # The types of an optimized plan: before, CASE and UNION are not yet of one type.
            optimized = frame.optimized_logical_plan()
        except Exception as error:
            if is_invalid(error):
                raise typed_error(error, sql) from error
            raise _not_handed_over(error) from error
        _refuse_zones(optimized.display_indent(), sql)
        try:
            schema = self._session.create_dataframe_from_logical_plan(optimized).schema()
            plan = Producer.to_substrait_plan(optimized, self._session)
            return Planned(plan.encode(), schema, _has_not_in(frame, sql))
        except Exception as error:
            raise _not_handed_over(error) from error

    def logical_plan(self, sql: str) -> str:
        """The query's plan before optimization, with schemas, as text."""
        try:
            return self._session.sql(sql).logical_plan().display_indent_schema()
        except Exception as error:
            raise typed_error(error, sql) from error

    def schema_of_plan(self, message: bytes) -> pa.Schema:
        """Output schema of a serialized plan."""
        from datafusion.substrait import Consumer, Serde

        plan = Consumer.from_substrait_plan(self._session, Serde.deserialize_bytes(message))
        return self._session.create_dataframe_from_logical_plan(plan).schema()


def _has_not_in(frame: DataFrame, sql: str) -> bool:
    if not _NOT_IN.search(sql):
        return False
    return "NOT IN (<subquery>)" in frame.logical_plan().display_indent()


def _refuse_lost(frame: DataFrame, sql: str) -> None:
    """Refuse what DataFusion leaves out of a window's message without a word."""
    if not _OVER.search(sql):
        return
    windows = [w for w in frame.logical_plan().display_indent().split("\n") if "WindowAggr:" in w]
    for mark, operator in _LOST_IN_WINDOWS.items():
        if any(mark in window for window in windows):
            raise UnsupportedSQL(
                operator,
                "DataFusion leaves it out of the plan that it hands over",
                "Write the condition as CASE inside the aggregate, or join a GROUP BY",
            )


def _refuse_zones(plan: str, sql: str) -> None:
    """Refuse time zones other than UTC, which the message does not name."""
    if _MAY_HAVE_ZONE.search(sql) and _OTHER_ZONE.search(plan):
        raise UnsupportedSQL(
            "AT TIME ZONE",
            "DataFusion leaves the time zone out of the plan that it hands over",
            "Convert the coordinate before registering it",
        )


def _not_handed_over(error: Exception) -> UnsupportedSQL:
    """DataFusion plans the query, but its plan has no form outside DataFusion."""
    message = str(error).replace("DataFusion error: ", "")
    cause = message.split("caused by\n")[-1].split("\n")[0]
    return UnsupportedSQL("plan", f"DataFusion cannot hand it over: {cause}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


_OVER = re.compile(r"\bOVER\b", re.IGNORECASE)
_LOST_IN_WINDOWS = {
    " FILTER (WHERE": "FILTER (...) OVER",
    "(DISTINCT ": "(DISTINCT ...) OVER",
    " IGNORE NULLS": "IGNORE NULLS OVER",
}
_MAY_HAVE_ZONE = re.compile(r"\bzone\b|\bsome\s*\(|arrow_cast|to_local_time", re.IGNORECASE)
_OTHER_ZONE = re.compile(r"""Timestamp\(\w+, (?:Some\()?"(?!UTC"|\+00:00")""")
_NOT_IN = re.compile(r"\bNOT\s+IN\b", re.IGNORECASE)

"""Derivatives in SQL: the tracer as an engine that ddxdb runs its programs on.

ddxdb turns ``grad(loss, w.val)`` into queries. Each one it asks to be stored is folded
into the same graph as everything else, so "storing" costs nothing and common work is
done once. Planning each common table expression by itself needs ``plan_key`` and
``plan_sql``, and ``materialize`` must take the schema-only tables that stand for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .errors import UnsupportedSQL
from .plan.planner import Planned

if TYPE_CHECKING:
    from .tracing import Tracer


class TracingBackend:
    """A :class:`ddxdb.Backend` over a tracer."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        #: How many queries ddxdb asked to store.
        self.steps = 0
        self._has_not_in = False

    def select_all(self, name: str) -> bytes:
        """Plan of every column of a table."""
        quoted = name.replace('"', '""')
        return self._tracer.plan(f'SELECT * FROM "{quoted}"').message

    def plan_sql(self, sql: str) -> bytes:
        """Plan of a query."""
        planned = self._tracer.plan(sql)
        self._has_not_in |= planned.has_not_in
        return planned.message

    def plan_key(self, sql: str) -> str:
        """Text that is the same only if the query's plan is."""
        return self._tracer.logical_plan(sql)

    def returns_rows(self, plan: bytes) -> bool:
        """Whether a plan has rows: ddxdb's check that a table's dims are unique.

        Known without running it where rows are identified by coordinates; where it
        depends on values the answer is yes, and ddxdb refuses the table.
        """
        table, _ = self._tracer.fold(self._planned(plan))
        builder = self._tracer.builder
        return any(not builder.is_never(part.present) for part in table.bag.parts)

    def materialize(self, name: str, plan: bytes) -> None:
        """Fold a plan and keep it under ``name``."""
        self.steps += 1
        planned = self._planned(plan)
        table, schema = self._tracer.fold(planned)
        self._tracer.define(name, table, schema)

    def drop_table(self, name: str) -> None:
        self._tracer.drop(name)

    def _planned(self, plan: bytes) -> Planned:
        return Planned(plan, self._tracer.schema_of_plan(plan), self._has_not_in)


@contextmanager
def differentiate(backend: TracingBackend, statement: str) -> Iterator[str]:
    """The statement with its derivative calls replaced by reads of what ddxdb computed.

    Raises:
        UnsupportedSQL: ddxdb has no rule for something in a query.
    """
    import ddxdb

    try:
        rewritten = ddxdb.rewrite(backend, [statement], "datafusion")
    except ddxdb.DdxError as error:
        raise UnsupportedSQL("derivative", f"{type(error).__name__}: {error}") from error
    with rewritten:
        yield rewritten.statements[0]

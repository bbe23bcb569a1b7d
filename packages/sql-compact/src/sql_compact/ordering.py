"""ORDER BY, LIMIT and OFFSET of a whole query: on the rows of its result.

Dense arrays have no row order, so the fold leaves the top of the plan's sorting out and
keeps its keys as further columns. The rows are then ordered by DataFusion itself, over the
keys alone: its order of NULLs, of floats (IEEE total order) and of text. Ties are in any
order, as in SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class OrderKey:
    """A hidden column of the result to order by.

    Attributes:
        position: among the hidden columns.
    """

    position: int
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class Step:
    """Order the rows (by nothing, where there are no keys), then keep some.

    Attributes:
        count: how many rows to keep; None: all from ``offset`` on.
    """

    keys: tuple[OrderKey, ...] = ()
    offset: int = 0
    count: int | None = None

    @property
    def restricts(self) -> bool:
        return self.offset > 0 or self.count is not None


def ordered_positions(
    keys: Sequence[pa.ChunkedArray], rows: int, steps: Sequence[Step]
) -> pa.Array:
    """Positions of the rows that the steps keep, in their order.

    Args:
        keys: the hidden columns, each of length ``rows``.
    """
    positions = pa.array(np.arange(rows))
    for step in steps:
        if step.keys:
            positions = positions.take(_sorted([k.take(positions) for k in keys], step))
        if step.restricts:
            positions = positions.slice(step.offset, step.count)
    return positions


def _sorted(keys: Sequence[pa.ChunkedArray], step: Step) -> pa.Array:
    """Positions in order of the keys; those that the step leaves out need not be there."""
    from datafusion import SessionContext  # only now: it takes long to import

    session = SessionContext()
    names = [f"k{key.position}" for key in step.keys]
    columns = [keys[key.position] for key in step.keys]
    table = pa.table([*columns, pa.array(np.arange(len(columns[0])))], names=[*names, "row"])
    session.register_record_batches("keys", [table.to_batches() or _no_batches(table.schema)])
    terms = ", ".join(_term(name, key) for name, key in zip(names, step.keys, strict=True))
    limit = "" if step.count is None else f" LIMIT {step.offset + step.count}"
    ordered = session.sql(f"SELECT row FROM keys ORDER BY {terms}{limit}").to_arrow_table()
    return ordered.column("row").combine_chunks()


def _term(name: str, key: OrderKey) -> str:
    direction = "DESC" if key.descending else "ASC"
    return f"{name} {direction} NULLS {'FIRST' if key.nulls_first else 'LAST'}"


def _no_batches(schema: pa.Schema) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pylist([], schema=schema)]

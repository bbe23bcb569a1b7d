"""The row engine: queries on DataFusion's rows, for what has no tensor form.

Tables are read as of the call. Datasets whose NaN means missing go through xarray-sql, which
reads them lazily and chunk by chunk; others become Arrow rows here, because xarray-sql takes
every NaN for a NULL.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from .arrow import arrow_array
from .budget import check_rows
from .domain import Explicit
from .errors import CompactError, QueryFailed
from .functions.macros import expand_macros
from .functions.udf import register_functions
from .plan.depth import session_config
from .plan.messages import is_invalid, typed_error
from .registration import Registered, extract
from .tables import CompactTable, Nulls, ValueColumn

if TYPE_CHECKING:
    from datafusion import SessionContext
    from datafusion.catalog import Schema

_WORD = re.compile(r"\w+")


def mentioned(names: Iterable[str], sql: str) -> list[str]:
    """The names that a statement may read; a word that only looks like one counts."""
    words = set(_WORD.findall(sql.lower()))
    return [name for name in names if set(_WORD.findall(name.lower())) <= words]


def run_rows(sql: str, tables: Mapping[str, Registered]) -> pa.Table:
    """The rows of a query, by DataFusion.

    Raises:
        InvalidSQL, UnknownTable, UnknownColumn: the query is wrong.
        QueryFailed: DataFusion could not finish it.
    """
    read = {name: tables[name] for name in mentioned(tables, sql)}
    session = _session(any(_through_xarray_sql(t) for t in read.values()))
    register_functions(session)
    schemas: dict[str, Schema] = {}
    for name, registered in read.items():
        _add(session, schemas, name, registered)
    try:
        frame = session.sql(expand_macros(sql))
    except CompactError:
        raise
    except Exception as error:
        raise typed_error(error, sql) from error
    try:
        return frame.to_arrow_table()
    except Exception as error:
        if is_invalid(error):
            raise typed_error(error, sql) from error
        message = str(error).replace("DataFusion error: ", "")
        raise QueryFailed(f"DataFusion could not run the query on rows: {message}") from error


def _session(xarray: bool) -> SessionContext:
    if not xarray:
        from datafusion import SessionContext

        return SessionContext(session_config())
    import xarray_sql

    return xarray_sql.Context(session_config())


def _through_xarray_sql(registered: Registered) -> bool:
    """Whether xarray-sql's rows are this table's: plain dims and numbers, NaN meaning NULL."""
    table = registered.table
    same = {frozenset(c.dims) for c in table.columns} == {frozenset(table.dims)}
    return (
        registered.dataset is not None
        and same
        and table.namespace is None
        and not table.keys
        and not registered.coded
        and all(original is None for original, _ in registered.coordinates.values())
    )


def _add(
    session: SessionContext, schemas: dict[str, Schema], name: str, registered: Registered
) -> None:
    if _through_xarray_sql(registered):
        dataset = registered.dataset.transpose(*registered.table.dims).reset_coords()
        if any(variable.chunks for variable in dataset.variables.values()):
            dataset = dataset.unify_chunks()
        session.from_dataset(name, dataset)
        return
    registered = registered.resolved()
    table = rows_of(registered)
    batches = table.to_batches(max_chunksize=1 << 16) or [_no_rows(table.schema)]
    namespace = registered.table.namespace
    quoted = '"' + name.replace('"', '""') + '"'
    session.register_record_batches(quoted, [batches])
    if namespace is not None:
        if namespace not in schemas:
            from datafusion.catalog import Schema

            schemas[namespace] = Schema.memory_schema(session)
            session.catalog().register_schema(namespace, schemas[namespace])
        local = name.removeprefix(f"{namespace}.")
        schemas[namespace].register_table(local, session.catalog().schema().table(name))


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)


def rows_of(registered: Registered) -> pa.Table:
    """A table's rows: one for each combination of positions of its dims.

    Raises:
        BudgetError: there are more than memory could hold.
    """
    table = registered.table
    shape = tuple(d.size for d in table.dims.values())
    check_rows(math.prod(shape), len(table.schema), f"table {table.name!r} as rows")
    arrays = []
    for axis, dim in enumerate(table.dims):
        values, valid = _key(table, dim)
        wide = [1] * len(shape)
        wide[axis] = -1
        arrays.append((values.reshape(wide), None if valid is None else valid.reshape(wide)))
    arrays += [_value(registered, column) for column in table.columns]
    columns = []
    for field, (values, valid) in zip(table.schema, arrays, strict=True):
        flat = np.broadcast_to(values, shape).reshape(-1)
        mask = None if valid is None else ~np.broadcast_to(valid, shape).reshape(-1)
        columns.append(arrow_array(flat, mask, field.type))
    if not columns:
        return pa.table({})
    return pa.Table.from_arrays(columns, schema=table.schema)


def _key(table: CompactTable, dim: str) -> tuple[np.ndarray, np.ndarray | None]:
    key = table.keys.get(dim)
    if key is None:
        return table.dims[dim].values(), None
    codes = key.codes.array
    values = key.values.array
    if not len(values):
        values = np.zeros(1, values.dtype)
    return values[np.maximum(codes, 0)], codes >= 0


def _value(registered: Registered, column: ValueColumn) -> tuple[Any, np.ndarray | None]:
    """A value column with one axis for each of the table's dims."""
    table = registered.table
    values, valid = extract(registered.arrays[column.name], registered.masks.get(column.name))
    values = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if values.dtype == np.float16:
        values = values.astype(np.float32)
    if column.nulls is Nulls.NAN:
        valid = ~np.isnan(values)
    if isinstance(column.values, Explicit):
        values = column.values.array[values]
    order = [column.dims.index(d) for d in table.dims if d in column.dims]
    shape = [d.size if name in column.dims else 1 for name, d in table.dims.items()]
    assert math.prod(shape) == values.size
    values = values.transpose(order).reshape(shape)
    return values, None if valid is None else np.asarray(valid).transpose(order).reshape(shape)

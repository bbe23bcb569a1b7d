"""The entry point: a context of compact tables that SQL runs over."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
import torch

from .arguments import checked_budget, checked_device, checked_name, checked_text
from .budget import Limit, Memory, allocations_checked, memory_of
from .errors import InvalidSQL, RowEngineWarning, UnknownTable, UnsupportedSQL
from .explain import explain_program, explain_rows
from .functions.macros import split_ctes, words_of
from .parameters import Parameters, bind_parameters, parameters_of
from .plan.depth import check_depth
from .plan.messages import pointed, written
from .precision import Precision
from .program import AssumptionFailed, Output, Program, build_program
from .reads import Reader
from .registration import Registered, registrations
from .relation.model import Coded, Relation, Table, Values
from .result import CompactResult, DenseResult, Origin, Part, RowResult
from .rows import mentioned, run_rows
from .streaming.chunked import Chunked, plan_chunks
from .streaming.selections import Selection
from .tables import CompactTable
from .tensor.graph import Op, topological
from .tensor.labelled import Tensor
from .tensor.maps import TORCH_DTYPES
from .tracing import DERIVATIVE, Tracer, nesting_checked
from .views import Viewed, with_views

#: Prepared queries a context keeps.
_CACHE_SIZE = 64
#: Functions of the time of planning: a query that calls one is planned each time.
_MOVING = re.compile(r"\b(now|today|current_(date|time|timestamp))\b", re.IGNORECASE)

Engine = Literal["auto", "compact", "rows"]
#: What a query starts with.
_QUERIES = frozenset({"select", "values", "with", "from", "table"})
#: How operators are written, by their names in plans.
_SYMBOLS = {"divide": "/", "modulus": "%", "str_concat": "||", "bitwise_and": "&"}
_ENGINES: tuple[Engine, ...] = ("auto", "compact", "rows")


@dataclass(frozen=True, slots=True)
class _Built:
    """A program with what is known of it before it runs."""

    program: Program
    memory: Memory
    dtypes: Mapping[str, torch.dtype]


@dataclass(slots=True)
class _Prepared:
    """A query folded over table layouts, and its programs built so far."""

    layouts: Mapping[str, CompactTable]
    tracer: Tracer
    table: Table
    schema: pa.Schema
    outputs: tuple[Output, ...]
    built: dict[bool, _Built] = field(default_factory=dict)

    def build(self, device: torch.device, exact: bool) -> _Built:
        if exact not in self.built:
            program = build_program(
                self.tracer.builder, self.outputs, device, exact=exact, select=True
            )
            results = (*program.nodes, *program.checks)
            inputs = {str(n.attributes): n.dtype for n in topological(results) if n.op is Op.INPUT}
            dtypes = {name: TORCH_DTYPES[dtype] for name, dtype in inputs.items()}
            self.built[exact] = _Built(program, memory_of(program.nodes), dtypes)
        return self.built[exact]


class CompactContext:
    """SQL over compact arrays.

    Any number of threads may query, register and deregister at once; a query sees the tables
    as of its call. Arrays are not copied on registration: a query reads what they hold when
    it runs, and its result is a snapshot that later changes do not reach.

    Args:
        device: where queries run, as torch names devices.
        precision: what arithmetic runs in; see :class:`sql_compact.Precision`.
        memory_budget: bytes that a query may need, counted before it runs: the arrays it
            reads and the most that its results and intermediate arrays take at once. A query
            that needs more runs chunk by chunk, if that is possible within the budget. None:
            what the device has in all. Queries on rows are not counted.

    Raises:
        ArgumentError: there is no such device, or the budget is not a number of bytes.
        DTypeError: there is no such precision.

    Example:
        >>> import numpy as np
        >>> ctx = CompactContext()
        >>> ctx.register("x", np.ones((2, 3)), dims=("b", "c"))
        >>> ctx.sql("SELECT b, SUM(val) AS total FROM x GROUP BY b").to_xarray().values
        array([3., 3.])
    """

    def __init__(
        self,
        device: str | torch.device = "cpu",
        precision: str | Precision = "float64",
        memory_budget: int | None = None,
    ) -> None:
        self._device = checked_device(device)
        self._precision = Precision.of(precision)
        self._limit = Limit.of(checked_budget(memory_budget), self._device)
        self._tables: Mapping[str, Registered] = {}
        self._owned: Mapping[str, tuple[str, ...]] = {}
        self._views: Mapping[str, str] = {}
        self._lock = threading.RLock()
        self._cache: dict[str, _Prepared] = {}

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the registered tables and views."""
        return (*self._tables, *self._views)

    def register(
        self,
        name: str,
        data: Any,
        dims: Sequence[str] | None = None,
        column: str = "val",
        domain: int | Mapping[str, int] | None = None,
        coords: Mapping[str, Any] | None = None,
        *,
        valid: Any = None,
        nan_is_null: bool = False,
    ) -> None:
        """Register a table, replacing one of that name. Nothing is copied or loaded.

        A Dataset's variables become value columns of one table, its dims key columns, other
        coordinates further value columns. Where variables have different dims, a value is
        repeated along the dims it lacks, and each group of variables with the same dims is
        also a table of its own, ``name.dim1_dim2`` (``name.scalar`` without dims); if no
        variable has all dims there are only those.

        Args:
            data: an xarray Dataset or DataArray, or with ``dims`` a numpy array (masked: NULL
                where the mask is set), torch tensor, or pandas array (NULL where ``isna``).
            dims: names of the array's axes, which become key columns.
            column: name of the value column of an array.
            domain: an integer column takes values 0..domain-1, so it can be joined with a
                dim or grouped by; a mapping gives it for each column of a Dataset.
            coords: coordinate values for each dim of an array; default 0..size-1.
            valid: booleans of the array's shape, false where its value is NULL; for a Dataset
                a mapping by variable.
            nan_is_null: NaN means missing, as xarray has it, and is NULL; default: NaN is a
                value, as in SQL.

        Raises:
            ArgumentError, UnknownColumn: an argument is of the wrong kind, or for something
                that the data does not have.
            ShapeError, DTypeError, DomainError: the data does not have that form.
        """
        added = registrations(name, data, dims, column, domain, coords, valid, nan_is_null)
        with self._lock:
            kept = self._without(name)
            views = {n: v for n, v in self._views.items() if n != name}
            self._tables, self._views = {**kept, **added}, views
            self._owned = {**self._owned, name: tuple(added)}

    def view(self, name: str, sql: str) -> None:
        """Name a query, to be read like a table; it is computed as part of what reads it.

        Raises:
            ArgumentError: the name is not one.
            InvalidSQL: a table has that name, or the text is not one query.
        """
        checked_name(name, "the name of the view")
        _query(checked_text(sql, f"view {name!r}"))
        parameters = parameters_of(sql)
        if parameters:
            raise InvalidSQL(
                f"view {name!r}: it has parameter ${parameters[0]}; write the value, or leave the "
                "condition to the queries that read the view"
            )
        with self._lock:
            if name in self._owned:
                raise InvalidSQL(f"view {name!r}: a table of that name is registered")
            self._views = {**self._views, name: sql.strip().rstrip(";")}

    def deregister(self, name: str) -> None:
        """Forget a table or a view.

        Raises:
            UnknownTable: there is none of that name.
        """
        checked_name(name, "the name of the table")
        with self._lock:
            if name not in self._owned and name not in self._views:
                raise UnknownTable(f"table {name!r} is not registered")
            self._tables = self._without(name)
            self._owned = {n: t for n, t in self._owned.items() if n != name}
            self._views = {n: v for n, v in self._views.items() if n != name}

    def _without(self, name: str) -> dict[str, Registered]:
        gone = self._owned.get(name, ())
        return {n: t for n, t in self._tables.items() if n not in gone}

    def sql(
        self, text: str, engine: Engine = "auto", params: Parameters | None = None
    ) -> CompactResult:
        """Run a query, which may call ``grad``, ``vjp`` and ``jvp``, and return its rows.

        Args:
            engine: ``"compact"``: as a dense tensor program or not at all; ``"rows"``: on
                DataFusion's rows; ``"auto"``: the former if possible, else the latter with a
                :class:`sql_compact.RowEngineWarning` that names the first reason.
                Derivatives never run on rows.
            params: values of ``$1, $2, ...`` in order, or of ``$name`` by name.

        Raises:
            InvalidSQL, UnknownTable, UnknownColumn: the query is wrong.
            UnsupportedSQL: it has no tensor form; the operator and the reason are named.
            BudgetError: it would need more memory than the budget or the device has, in
                chunks too.
            QueryFailed: DataFusion could not finish it on rows.
        """
        viewed, tables = self._read(text, params, engine)
        with viewed.checked():
            return self._answer(viewed.statement, tables, engine)

    def _answer(
        self, statement: str, tables: Mapping[str, Registered], engine: str
    ) -> CompactResult:
        if engine == "rows":
            return self._on_rows(statement, tables)
        try:
            prepared, built = self._prepare(statement, tables)
        except UnsupportedSQL as reason:
            self._refuse(reason, statement, engine)
            warnings.warn(f"running on rows: {reason}", RowEngineWarning, stacklevel=3)
            return self._on_rows(statement, tables)
        try:
            values = self._run(prepared, built, tables)
        except AssumptionFailed:
            with self._lock:
                built = prepared.build(self._device, exact=True)
            values = self._run(prepared, built, tables)
        computed = {o.tensor: v for o, v in zip(prepared.outputs, values, strict=True)}
        parts = [Part(part, computed) for part in prepared.table.bag.parts]
        table = prepared.table
        return DenseResult(table.names, prepared.schema, parts, table.steps, _origin(tables))

    def explain(self, text: str, engine: Engine = "auto", params: Parameters | None = None) -> str:
        """Which engine would run a query and how, without running it.

        The folded program is listed with each contraction and reduction and its sizes; for a
        query on rows the reason is named.

        Raises:
            As :meth:`sql`, but for what only happens when it runs.
        """
        viewed, tables = self._read(text, params, engine)
        with viewed.checked():
            return self._explained(viewed.statement, tables, engine)

    def _explained(self, statement: str, tables: Mapping[str, Registered], engine: str) -> str:
        if engine == "rows":
            return explain_rows("engine='rows' was asked for")
        try:
            prepared, built = self._prepare(statement, tables)
        except UnsupportedSQL as reason:
            self._refuse(reason, statement, engine)
            return explain_rows(str(reason))
        chunked = self._chunked(prepared, built, Reader(tables, self._device))
        memory = built.memory if chunked is None else chunked.memory
        how = None if chunked is None else chunked.describe()
        return explain_program(built.program.nodes, memory, self._limit.budget, how)

    def _read(
        self, text: str, params: Parameters | None, engine: str
    ) -> tuple[Viewed, Mapping[str, Registered]]:
        """The statement with parameters and views written out, and the tables as of now."""
        if engine not in _ENGINES:
            raise InvalidSQL(f"unknown engine {engine!r}; choose one of {', '.join(_ENGINES)}")
        with self._lock:
            tables, views = self._tables, self._views
        text = checked_text(text, "the query")
        with nesting_checked():
            viewed = with_views(_query(bind_parameters(text, params)), views)
        statement = viewed.statement
        check_depth(statement)
        read = mentioned(tables, statement)
        return viewed, {n: t.resolved() if n in read else t for n, t in tables.items()}

    def _refuse(self, reason: UnsupportedSQL, statement: str, engine: str) -> None:
        """Raise the reason, with its place, unless the query may run on rows instead."""
        if engine == "compact" or DERIVATIVE.search(statement):
            raise _placed(reason, statement) from reason

    def _on_rows(self, statement: str, tables: Mapping[str, Registered]) -> RowResult:
        if DERIVATIVE.search(statement):
            raise UnsupportedSQL(
                "grad, vjp and jvp", "derivatives do not run on rows", "Use engine='compact'"
            )
        rows = run_rows(statement, tables)
        dims = [d for name in mentioned(tables, statement) for d in tables[name].table.dims]
        return RowResult(rows, tuple(dict.fromkeys(dims)))

    def _prepare(
        self, statement: str, tables: Mapping[str, Registered]
    ) -> tuple[_Prepared, _Built]:
        """The query folded, kept for as long as the tables' layouts stay the same."""
        layouts = {name: registered.table for name, registered in tables.items()}
        with self._lock:
            prepared = self._cache.pop(statement, None)
            if prepared is None or prepared.layouts != layouts or _MOVING.search(statement):
                tracer = Tracer(layouts, self._precision)
                table, schema, _ = tracer.trace(statement)
                prepared = _Prepared(layouts, tracer, table, schema, tuple(_outputs(table)))
            self._cache[statement] = prepared
            while len(self._cache) > _CACHE_SIZE:
                del self._cache[next(iter(self._cache))]
            with nesting_checked():
                return prepared, prepared.build(self._device, exact=False)

    def _chunked(self, prepared: _Prepared, built: _Built, reader: Reader) -> Chunked | None:
        """How to run a program that needs more than the limit; None if it fits.

        Raises:
            BudgetError: no axis can be split so that it fits.
        """
        if built.memory.total <= self._limit.size:
            return None
        with self._lock:
            graph = prepared.tracer.builder.graph
            chunked = plan_chunks(
                built.program, graph, self._limit.chunked, reader.array, reader.dims
            )
        if chunked is None:
            raise self._limit.exceeded(built.memory)
        return chunked

    def _run(
        self, prepared: _Prepared, built: _Built, tables: Mapping[str, Registered]
    ) -> list[torch.Tensor]:
        """The program's results, none of which shares memory with a registered array."""
        reader = Reader(tables, self._device)
        chunked = self._chunked(prepared, built, reader)
        owned: set[int] = set()

        def read(parts: Mapping[str, Selection]) -> dict[str, torch.Tensor]:
            tensors = reader.read(parts)
            owned.update(t.untyped_storage().data_ptr() for t in tensors.values())
            return tensors

        with allocations_checked(built.memory if chunked is None else chunked.memory, self._device):
            if chunked is not None:
                results = chunked.run(read, self._device)
            else:
                with self._lock:  # to lower it once
                    names = built.program.inputs
                inputs = read({n: built.program.parts[n] for n in names})
                results = built.program.run({n: t.to(built.dtypes[n]) for n, t in inputs.items()})
            return [r.clone() if r.untyped_storage().data_ptr() in owned else r for r in results]


def _query(statement: str) -> str:
    """The statement, if it is one query.

    Raises:
        InvalidSQL: it is something else.
    """
    _, final = split_ctes(statement)
    word = final.lstrip("( \t\r\n").split(None, 1)[0].split("(")[0].lower()
    if word not in _QUERIES:
        raise InvalidSQL(
            pointed(
                f"{word.upper()}: only queries run here; register() adds tables, view() names "
                "queries, explain() shows how one runs",
                statement,
                statement.find(final),
            )
        )
    for word, offset in words_of(statement):
        if word == "tablesample":
            message = "TABLESAMPLE: every row would be read; write a condition on them instead"
            raise InvalidSQL(pointed(message, statement, offset))
    return statement


def _placed(reason: UnsupportedSQL, statement: str) -> UnsupportedSQL:
    """The error with what would work and the operator's line and column, where it is written."""
    hint = reason.hint
    if not hint and not DERIVATIVE.search(statement):
        hint = "engine='rows' runs it on DataFusion's rows"
    word = reason.operator.split("(")[0].split(" ")[0].lower()
    symbol = _SYMBOLS.get(word)
    offset = written(word, statement) if word and word != "plan" else None
    if offset is None and symbol is not None and symbol in statement:
        offset = statement.index(symbol)
    if offset is not None:
        hint = pointed(hint, statement, offset)
    return UnsupportedSQL(reason.operator, reason.reason, hint)


def _origin(tables: Mapping[str, Registered]) -> Origin:
    coordinates = {}
    columns = {}
    for registered in tables.values():
        table = registered.table
        for dim, kept in registered.coordinates.items():
            if dim not in table.keys:
                coordinates[dim, table.dims[dim]] = kept
        for column in table.columns:
            array = registered.arrays[column.name]
            if hasattr(array, "encoding"):
                columns[table.input_name(column)] = (dict(array.attrs), dict(array.encoding))
    return Origin(coordinates, columns)


def _outputs(table: Table) -> Iterator[Output]:
    """Every tensor that the table's rows are made of, each once."""
    seen: dict[Tensor, None] = {}
    for part in table.bag.parts:
        seen.update(dict.fromkeys(_tensors(part)))
    return (Output(tensor, tensor.axes) for tensor in seen)


def _tensors(part: Relation) -> Iterator[Tensor]:
    if part.present is not None:
        yield part.present
    for column in part.columns:
        if isinstance(column, Values):
            yield column.value
        elif isinstance(column, Coded):
            yield column.code
        if column.valid is not None:
            yield column.valid

"""The entry point: a context of compact tables that SQL runs over."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import torch

from .errors import ShapeError, UnknownTable
from .explain import explain_program
from .precision import Precision
from .program import AssumptionFailed, Output, Program, build_program
from .relation.model import Coded, Relation, Table, Values
from .result import CompactResult, Part
from .tables import CompactTable, table_of_array, table_of_dataset
from .tensor.labelled import Tensor
from .tensor.maps import TORCH_DTYPES
from .tracing import Tracer

#: Prepared queries a context keeps.
_CACHE_SIZE = 64


@dataclass(frozen=True, slots=True)
class _Registered:
    """A table's layout and its arrays by column; replaced, never changed."""

    table: CompactTable
    arrays: Mapping[str, Any]


@dataclass(slots=True)
class _Prepared:
    """A query folded over table layouts, and its programs built so far."""

    layouts: Mapping[str, CompactTable]
    tracer: Tracer
    table: Table
    schema: pa.Schema
    outputs: tuple[Output, ...]
    programs: dict[bool, Program] = field(default_factory=dict)

    def program(self, device: torch.device, exact: bool) -> Program:
        if exact not in self.programs:
            self.programs[exact] = build_program(
                self.tracer.builder, self.outputs, device, exact=exact
            )
        return self.programs[exact]


class CompactContext:
    """SQL over compact arrays.

    Args:
        device: where queries run, as torch names devices.
        precision: what arithmetic runs in; see :class:`sql_compact.Precision`.

    Example:
        >>> import numpy as np
        >>> ctx = CompactContext()
        >>> ctx.register("x", np.ones((2, 3)), dims=("b", "c"))
        >>> ctx.sql("SELECT b, SUM(val) AS total FROM x GROUP BY b").to_xarray().values
        array([3., 3.])
    """

    def __init__(
        self, device: str | torch.device = "cpu", precision: str | Precision = "float64"
    ) -> None:
        self._device = torch.device(device)
        self._precision = Precision.of(precision)
        self._tables: Mapping[str, _Registered] = {}
        self._lock = threading.RLock()
        self._cache: dict[str, _Prepared] = {}

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the registered tables."""
        return tuple(self._tables)

    def register(
        self,
        name: str,
        data: Any,
        dims: Sequence[str] | None = None,
        column: str = "val",
        domain: int | Mapping[str, int] | None = None,
        coords: Mapping[str, Any] | None = None,
    ) -> None:
        """Register a table, replacing one of that name. Nothing is copied or loaded.

        Args:
            data: an xarray Dataset (variables become value columns) or DataArray, or a
                numpy or torch array with ``dims``.
            dims: names of the array's axes, which become key columns.
            column: name of the value column of an array.
            domain: an integer column takes values 0..domain-1, so it can be joined with a
                dim or grouped by; a mapping gives it for each column of a Dataset.
            coords: coordinate values for each dim of an array; default 0..size-1.

        Raises:
            ShapeError, DTypeError, DomainError: the data does not have that form.
        """
        registered = _registered(name, data, dims, column, domain, coords)
        with self._lock:
            self._tables = {**self._tables, name: registered}

    def deregister(self, name: str) -> None:
        """Forget a table.

        Raises:
            UnknownTable: there is none of that name.
        """
        with self._lock:
            if name not in self._tables:
                raise UnknownTable(f"table {name!r} is not registered")
            self._tables = {n: t for n, t in self._tables.items() if n != name}

    def sql(self, text: str) -> CompactResult:
        """Run a query, which may call ``grad``, ``vjp`` and ``jvp``, and return its rows.

        Raises:
            InvalidSQL, UnknownTable, UnknownColumn: the query is wrong.
            UnsupportedSQL: it has no tensor form; the operator and the reason are named.
        """
        tables = self._tables
        with self._lock:
            prepared = self._prepare(text, tables)
            program = prepared.program(self._device, exact=False)
        try:
            values = self._run(program, tables)
        except AssumptionFailed:
            with self._lock:
                program = prepared.program(self._device, exact=True)
            values = self._run(program, tables)
        computed = {o.tensor: v for o, v in zip(prepared.outputs, values, strict=True)}
        parts = [Part(part, computed) for part in prepared.table.bag.parts]
        return CompactResult(prepared.table.names, prepared.schema, parts)

    def explain(self, text: str) -> str:
        """The folded program of a query: each contraction and reduction with dims and sizes."""
        with self._lock:
            prepared = self._prepare(text, self._tables)
            return explain_program(prepared.program(self._device, exact=False).nodes)

    def _prepare(self, text: str, tables: Mapping[str, _Registered]) -> _Prepared:
        """The query folded, kept for as long as the tables' layouts stay the same."""
        layouts = {name: registered.table for name, registered in tables.items()}
        prepared = self._cache.pop(text, None)
        if prepared is None or prepared.layouts != layouts:
            tracer = Tracer(layouts, self._precision)
            table, schema, _ = tracer.trace(text)
            prepared = _Prepared(layouts, tracer, table, schema, tuple(_outputs(table)))
        self._cache[text] = prepared
        while len(self._cache) > _CACHE_SIZE:
            del self._cache[next(iter(self._cache))]
        return prepared

    def _run(self, program: Program, tables: Mapping[str, _Registered]) -> list[torch.Tensor]:
        """The program's results, none of which shares memory with a registered array."""
        inputs = self._inputs(program, tables)
        owned = {t.untyped_storage().data_ptr() for t in inputs.values()}
        results = program.run(inputs)
        return [r.clone() if r.untyped_storage().data_ptr() in owned else r for r in results]

    def _inputs(
        self, program: Program, tables: Mapping[str, _Registered]
    ) -> dict[str, torch.Tensor]:
        columns = {
            registered.table.input_name(column): (registered, column)
            for registered in tables.values()
            for column in registered.table.columns
        }
        inputs = {}
        for name in program.inputs:
            registered, column = columns[name]
            array = registered.table.check(column, registered.arrays[column.name], self._device)
            element = self._precision.element(column.dtype, array.dim())
            inputs[name] = array.to(TORCH_DTYPES[element])
        return inputs


def _registered(
    name: str,
    data: Any,
    dims: Sequence[str] | None,
    column: str,
    domain: int | Mapping[str, int] | None,
    coords: Mapping[str, Any] | None,
) -> _Registered:
    if hasattr(data, "data_vars"):
        domains = domain if isinstance(domain, Mapping) else None
        table = table_of_dataset(name, data, domains)
        return _Registered(table, {c.name: data[c.name] for c in table.columns})
    if hasattr(data, "coords"):
        dims = tuple(map(str, data.dims)) if dims is None else dims
        own = {str(d): data.coords[d].values for d in data.dims if d in data.coords}
        coords = {**own, **(coords or {})}
        if column == "val" and data.name is not None:
            column = str(data.name)
    if dims is None:
        raise ShapeError(f"table {name!r}: an array needs dims=(...), the name of each axis")
    bound = domain.get(column) if isinstance(domain, Mapping) else domain
    table = table_of_array(name, data, dims, column, bound, coords)
    return _Registered(table, {column: data})


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

"""Several named SQL statements as one tensor program: the interface for training steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from .errors import ShapeError, UnknownColumn, UnknownTable
from .explain import explain_program
from .precision import Precision
from .program import Output, Program, build_program, matmul_precision
from .relation.model import Column, Coordinate, Relation, Table, Values
from .tables import CompactTable
from .tensor.labelled import Axis
from .tensor.maps import TORCH_DTYPES
from .tracing import Tracer


@dataclass(frozen=True, slots=True)
class DenseOutput:
    """One value column of a statement, as a dense array.

    Attributes:
        dims: the statement's key columns, in order; the array's axes.
    """

    statement: str
    column: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DenseProgram:
    """A program from input arrays to dense output arrays.

    Attributes:
        inputs: names of the arrays it reads, as ``table.column``, and their element types.
        outputs: what it computes, in order.
        module: callable on the inputs in order, returning the outputs as a tuple; this is
            what to compile or capture. Run it inside ``matmul_precision(precision)``.
    """

    inputs: Mapping[str, torch.dtype]
    outputs: tuple[DenseOutput, ...]
    module: torch.nn.Module
    precision: Precision
    _program: Program

    def run(self, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """The outputs for these inputs."""
        with torch.no_grad(), matmul_precision(self.precision):
            return list(self.module(*(inputs[name] for name in self.inputs)))

    def explain(self) -> str:
        """The folded program, one line for each operation."""
        return explain_program(self._program.nodes)


class StatementTrace:
    """Named statements folded into one graph, from which programs are built.

    Statements run in order and may read those before them by name. Those that call
    ``grad`` share one backward program, and everything common is computed once.

    Args:
        tables: layouts of the tables that the statements read.
        statements: SQL text by name.

    Raises:
        CompactError: a statement is invalid or has no tensor form.
    """

    def __init__(
        self,
        tables: Sequence[CompactTable],
        statements: Mapping[str, str],
        precision: str | Precision = "float64",
    ) -> None:
        self._precision = Precision.of(precision)
        self._tracer = Tracer({t.name: t for t in tables}, self._precision)
        self._traced: dict[str, Table] = {
            name: table for name, (table, _) in self._tracer.trace(statements).items()
        }

    def columns(self, statement: str) -> tuple[str, ...]:
        """Names of a statement's columns.

        Raises:
            UnknownTable: there is no such statement.
        """
        if statement not in self._traced:
            raise UnknownTable(f"there is no statement {statement!r}")
        return self._traced[statement].names

    def program(
        self, outputs: Sequence[tuple[str, str]], device: str | torch.device = "cpu"
    ) -> DenseProgram:
        """A program that computes these (statement, column) pairs.

        Values are assumed to be finite wherever a mask hides them: if the outputs are
        finite they are SQL's, so the caller must check them.

        Raises:
            UnknownTable, UnknownColumn: there is no such statement or column.
            ShapeError: its rows are not one for each combination of its key columns, or a
                value may be NULL.
        """
        requests = [self._request(*pair) for pair in outputs]
        tensors = [output for _, output in requests]
        program = build_program(self._tracer.builder, tensors, torch.device(device), check=False)
        return DenseProgram(
            {name: self._input_dtype(name) for name in program.inputs},
            tuple(dense for dense, _ in requests),
            program.lowered.module,
            self._precision,
            program,
        )

    def _input_dtype(self, name: str) -> torch.dtype:
        graph = self._tracer.builder.graph
        return TORCH_DTYPES[next(n.dtype for n in graph.nodes if n.attributes == name)]

    def _request(self, statement: str, column: str) -> tuple[DenseOutput, Output]:
        names = self.columns(statement)
        table = self._traced[statement]
        if column not in names:
            raise UnknownColumn(
                f"statement {statement!r} has no column {column!r}; it has: {', '.join(table.names)}"
            )
        relation = self._single(table, statement)
        target = relation.columns[table.names.index(column)]
        where = f"statement {statement!r}, column {column!r}"
        if relation.present is not None or target.valid is not None:
            raise ShapeError(f"{where}: a row may be absent or NULL, so it is not a dense array")
        if not isinstance(target, Values):
            raise ShapeError(f"{where}: a key column is not a value")
        dims = _dims(table, relation, where)
        axes = tuple(dims.values())
        dense = DenseOutput(statement, column, tuple(dims), tuple(a.size for a in axes))
        return dense, Output(target.value, axes)

    def _single(self, table: Table, statement: str) -> Relation:
        if len(table.bag.parts) != 1:
            raise ShapeError(f"statement {statement!r}: a union of parts is not a dense array")
        return table.bag.parts[0]


def _dims(table: Table, relation: Relation, where: str) -> dict[str, Axis]:
    dims: dict[str, Axis] = {}
    columns: tuple[Column, ...] = relation.columns
    for name, column in zip(table.names, columns, strict=True):
        if isinstance(column, Coordinate):
            dims[name] = column.axis
    if set(dims.values()) != set(relation.axes) or len(dims) != len(relation.axes):
        raise ShapeError(f"{where}: its rows are not one for each combination of its key columns")
    return dims

"""The common tables of a statement as one tensor program: the interface for training steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from .errors import ShapeError, UnknownColumn, UnknownTable
from .explain import explain_program
from .lowering.memory import peak_bytes
from .precision import Precision
from .program import Output, Program, build_program, matmul_precision
from .relation.model import Column, Coordinate, Relation, Table, Values
from .tables import CompactTable
from .tensor.labelled import Axis
from .tensor.maps import TORCH_DTYPES
from .tracing import Tracer


@dataclass(frozen=True, slots=True)
class DenseOutput:
    """One value column of a common table, as a dense array.

    Attributes:
        dims: the table's key columns, in order; the array's axes.
    """

    table: str
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

    def peak_bytes(self) -> int:
        """Estimated peak memory of a run: inputs, outputs, and arrays until their last use."""
        return peak_bytes(self._program.nodes)


class StatementTrace:
    """A statement whose common tables are folded into one graph, to build programs from.

    A training step is one statement: ``WITH`` model, loss, gradients, update. Gradients of
    one loss share one backward program, and everything common is computed once.

    Args:
        tables: layouts of the tables that the statement reads.
        sql: the statement.
        keep: names of the common tables that programs will output.

    Raises:
        CompactError: the statement is invalid or has no tensor form.
    """

    def __init__(
        self,
        tables: Sequence[CompactTable],
        sql: str,
        keep: Sequence[str],
        precision: str | Precision = "float64",
    ) -> None:
        self._precision = Precision.of(precision)
        self._tracer = Tracer({t.name: t for t in tables}, self._precision)
        _, _, self._traced = self._tracer.trace(sql, keep)

    def columns(self, table: str) -> tuple[str, ...]:
        """Names of a common table's columns.

        Raises:
            UnknownTable: none of that name was kept.
        """
        if table not in self._traced:
            raise UnknownTable(f"no common table {table!r} was kept")
        return self._traced[table].names

    def program(
        self, outputs: Sequence[tuple[str, str]], device: str | torch.device = "cpu"
    ) -> DenseProgram:
        """A program that computes these (common table, column) pairs.

        Values are assumed to be finite wherever a mask hides them: if the outputs are
        finite they are SQL's, so the caller must check them.

        Raises:
            UnknownTable, UnknownColumn: there is no such table or column.
            ShapeError: its rows are not one for each combination of its key columns, or a
                value may be NULL.
        """
        requests = [self._request(*pair) for pair in outputs]
        tensors = [output for _, output in requests]
        program = build_program(
            self._tracer.builder, tensors, torch.device(device), check=False, reassociate=True
        )
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

    def _request(self, name: str, column: str) -> tuple[DenseOutput, Output]:
        names = self.columns(name)
        where = f"table {name!r}, column {column!r}"
        if column not in names:
            raise UnknownColumn(f"table {name!r} has no column {column!r}; it has: {names}")
        table = self._traced[name]
        if len(table.bag.parts) != 1:
            raise ShapeError(f"{where}: a union of parts is not a dense array")
        relation = table.bag.parts[0]
        target = relation.columns[names.index(column)]
        known = self._tracer.builder.known_mask
        if known(relation.present) is not None or known(target.valid) is not None:
            raise ShapeError(f"{where}: a row may be absent or NULL, so it is not a dense array")
        if not isinstance(target, Values):
            raise ShapeError(f"{where}: a key column is not a value")
        dims = _dims(table, relation, where)
        axes = tuple(dims.values())
        dense = DenseOutput(name, column, tuple(dims), tuple(a.size for a in axes))
        return dense, Output(target.value, axes)


def _dims(table: Table, relation: Relation, where: str) -> dict[str, Axis]:
    dims: dict[str, Axis] = {}
    columns: tuple[Column, ...] = relation.columns
    for name, column in zip(table.names, columns, strict=True):
        if isinstance(column, Coordinate):
            dims[name] = column.axis
    if set(dims.values()) != set(relation.axes) or len(dims) != len(relation.axes):
        raise ShapeError(f"{where}: its rows are not one for each combination of its key columns")
    return dims

"""The programs of a session: traced from its statements, built when first needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from sql_compact import (
    CompactTable,
    DenseProgram,
    DType,
    Precision,
    StatementTrace,
    UnsupportedSQL,
    ValueColumn,
)

from .buffers import StateBuffers
from .engine import StateSlot, StepEngine
from .errors import SessionError
from .inputs import hyper_layout
from .layouts import StateLayout
from .step_sql import (
    ACCUMULATED,
    MICRO_BATCH,
    Recipe,
    StepSQL,
    accumulate_sql,
    evaluation_sql,
    gradient_sum,
    step_sql,
    update_sql,
)
from .target import Target

#: What a step reports, before the next state: loss, gradient norm, a sum that is finite if
#: the state is.
REPORTED = ("loss", "grad_norm", "state_sum")


class ShapePrograms:
    """The programs that read a batch, for one set of batch shapes.

    Raises:
        CompactError: the loss or the optimizer's statements are wrong; nothing has run then.
    """

    def __init__(
        self,
        recipe: Recipe,
        layout: StateLayout,
        batch: Mapping[str, CompactTable],
        hyper: Sequence[str],
        buffers: StateBuffers,
        target: Target,
    ) -> None:
        self.batch = batch
        self._recipe = recipe
        self._layout = layout
        self._hyper = hyper_layout(hyper)
        self._target = target
        self.sql = step_sql(recipe)
        self._trace = self._traced(self.sql)
        self.loss_column = _loss_column(self._trace)
        outputs = [("loss", self.loss_column), ("grad_norm", "val"), ("state_sum", "val")]
        self.step = _update_engine(self._trace, outputs, layout, buffers, target)

    def _traced(self, statement: StepSQL, extra: Sequence[CompactTable] = ()) -> StatementTrace:
        tables = [*self._layout.arrays.values(), *self.batch.values(), self._hyper, *extra]
        return traced(statement, tables, self._recipe, self._target.precision)

    @cached_property
    def gradients(self) -> DenseProgram:
        """Raw gradients, one output for each parameter table."""
        outputs = [(table.gradient, "val") for table in self._layout.tables]
        return self._trace.program(outputs, self._target.device)

    @cached_property
    def evaluation(self) -> StepEngine:
        """The loss without dropout, compiled like the step. It has no state: weights are
        inputs, so that averaged ones can take their place."""
        hyper = [column.name for column in self._hyper.columns]
        trace = self._traced(evaluation_sql(self._recipe.loss, hyper))
        program = trace.program([("loss", self.loss_column)], self._target.device)
        return StepEngine(program, [], StateBuffers({}), 1, self._target)

    def accumulation(self, sums: StateBuffers) -> StepEngine:
        """Adds one micro-batch to the sums; the weights are inputs."""
        statement = accumulate_sql(self._recipe, self.loss_column)
        trace = self._traced(statement, [*sum_layouts(self._layout), _MICRO_BATCH])
        outputs = [("loss", self.loss_column)]
        slots = []
        for column in ("loss", "weight"):
            slots.append(StateSlot(column, f"{ACCUMULATED}.{column}", len(outputs)))
            outputs.append((f"{ACCUMULATED}_next", column))
        for table in self._layout.tables:
            name = gradient_sum(table)
            slots.append(StateSlot(name, f"{name}.val", len(outputs)))
            outputs.append((f"{name}_next", "val"))
        program = trace.program(outputs, self._target.device)
        return StepEngine(program, slots, sums, 1, self._target)


def accumulated_update(
    recipe: Recipe,
    layout: StateLayout,
    hyper: Sequence[str],
    buffers: StateBuffers,
    target: Target,
) -> StepEngine:
    """The update from accumulated gradients, which are inputs."""
    tables = [*layout.arrays.values(), hyper_layout(hyper), *sum_layouts(layout)]
    trace = traced(update_sql(recipe), tables, recipe, target.precision)
    outputs = [("loss", "loss"), ("grad_norm", "val"), ("state_sum", "val")]
    return _update_engine(trace, outputs, layout, buffers, target)


_MICRO_BATCH = CompactTable(MICRO_BATCH, {}, (ValueColumn("weight", (), (), DType.FLOAT64),))


def sum_layouts(layout: StateLayout) -> list[CompactTable]:
    """Layouts of the sums over micro-batches."""
    numbers = tuple(ValueColumn(name, (), (), DType.FLOAT64) for name in ("loss", "weight"))
    tables = [CompactTable(ACCUMULATED, {}, numbers)]
    for table in layout.tables:
        weight = layout.arrays[table.name]
        tables.append(CompactTable(gradient_sum(table), weight.dims, weight.columns))
    return tables


def traced(
    statement: StepSQL, tables: Sequence[CompactTable], recipe: Recipe, precision: Precision
) -> StatementTrace:
    """The statement, folded; errors about derivatives are put in the session's words."""
    try:
        return StatementTrace(tables, statement.text, statement.tables, precision)
    except UnsupportedSQL as error:
        raise _explained(error, [p.name for p in recipe.parameters]) from error


def run(
    program: DenseProgram, inputs: Mapping[str, torch.Tensor], device: torch.device
) -> list[np.ndarray]:
    """The outputs of a program on its device, as copies of the host."""
    results = program.run({n: inputs[n].to(device, d) for n, d in program.inputs.items()})
    return [result.cpu().numpy().copy() for result in results]


def _update_engine(
    trace: StatementTrace,
    reported: Sequence[tuple[str, str]],
    layout: StateLayout,
    buffers: StateBuffers,
    target: Target,
) -> StepEngine:
    outputs = list(reported)
    slots = []
    for name, statement in layout.names():
        slots.append(StateSlot(name, layout.input(name), len(outputs)))
        outputs.append((statement, "val"))
    program = trace.program(outputs, target.device)
    for output in program.outputs[: len(reported)]:
        if output.shape:
            raise SessionError(
                f"{output.table}: the query has one row for each of {output.dims}; "
                "it must have one row, so aggregate it"
            )
    for (name, statement), output in zip(
        layout.names(), program.outputs[len(reported) :], strict=True
    ):
        dims = tuple(layout.arrays[name].dims)
        if output.dims != dims:
            raise SessionError(
                f"optimizer: the statement {statement!r} has the key columns {output.dims}; "
                f"they must be those of its parameter, {dims}"
            )
        shape = layout.arrays[name].columns[0].shape
        if tuple(output.shape) != shape:
            raise SessionError(
                f"optimizer: the statement {statement!r} has {tuple(output.shape)} rows along "
                f"{dims}; its parameter has {shape}, and every row needs a next value"
            )
    return StepEngine(program, slots, buffers, len(reported), target)


def _loss_column(trace: StatementTrace) -> str:
    names = trace.columns("loss")
    if len(names) != 1:
        raise SessionError(f"loss: the query has columns {list(names)}; it must have one")
    return names[0]


def _explained(error: UnsupportedSQL, parameters: list[str]) -> Exception:
    """A ddxdb error about a parameter or the loss, in the session's words."""
    if "NotScalar" in str(error):
        return SessionError(f"loss: the query must return one row and one column ({error})")
    if "UnknownColumn" in str(error):
        # ddxdb quotes the table that no gradient reaches.
        named = [p for p in parameters if f"`{p}`" in str(error)] or ["one of the parameters"]
        return SessionError(f"loss: the query does not read parameter {named[0]!r} ({error})")
    return error

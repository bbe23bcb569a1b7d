"""Training sessions: complete training steps in SQL, with the state kept on the device."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sql_compact import (
    CompactContext,
    CompactResult,
    CompactTable,
    DenseProgram,
    DTypeError,
    Precision,
    StatementTrace,
    UnsupportedSQL,
    table_of_array,
)

from .checkpoint import ExpectedState, load, make_checkpoint, save, sql_hash
from .engine import StateSlot, StepEngine
from .errors import NonFiniteState, SessionError
from .inputs import BatchInput, checked_batch, hyper_layout
from .optimizers import Optimizer, ParameterTable
from .schedules import Schedule, as_schedule
from .step_sql import evaluation_sql, step_sql

if TYPE_CHECKING:
    import xarray as xr

#: What a step reports first: loss, gradient norm, and a sum that is finite if the state is.
_SCALARS = (("loss", None), ("grad_norm", "val"), ("state_sum", "val"))


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one update did.

    Attributes:
        step: number of updates completed, this one included.
        loss: before the update.
        grad_norm: global norm of the raw gradient.
        valid: whether loss, gradient and new state are finite, so the update was made.
    """

    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    valid: bool


@dataclass(frozen=True, slots=True)
class Counters:
    """What a session has done since it was made.

    Attributes:
        compilations: of the step program; 1 after the first step, ever after.
        steps: updates made.
        skipped: updates not made because something was not finite.
        arrays_exported, bytes_exported: state copied out of the session.
        scalars_read: numbers read back from the device.
        bytes_uploaded: batch and hyperparameters.
    """

    compilations: int = 0
    steps: int = 0
    skipped: int = 0
    arrays_exported: int = 0
    bytes_exported: int = 0
    scalars_read: int = 0
    bytes_uploaded: int = 0


class TrainingSession:
    """A model in SQL under training: weights and optimizer state stay on the device.

    Each step is one tensor program: loss, gradients, clipping, update and validation, all
    written as SQL (:attr:`step_sql`). The new state is published only once it is known to
    be finite; a step that fails for any reason leaves the session as it was.

    Args:
        loss: a query of one row and one column over the parameter, batch and ``hyper``
            tables.
        parameters: initial weights by table name, each a DataArray; its dims become key
            columns, its values the column ``val``.
        batch: the inputs of a step by table name.
        optimizer: the update, as SQL.
        clip_norm: clip gradients to this global norm; None: do not.
        learning_rate: a number, or a function of the 0-based step.
        hyper: further columns of the one-row table ``hyper`` (``step``, ``seed``, ``lr``).
            ``dropout`` is 0 in :meth:`evaluate`.
        seed: of every random number, with the step.
        compile: compile the step; default on CUDA only, where it is also captured.
        on_non_finite: ``"raise"``, or ``"skip"`` the update and count it.

    Raises:
        CompactError: anything in the arguments is wrong; nothing has run then.
    """

    def __init__(
        self,
        loss: str,
        parameters: Mapping[str, xr.DataArray],
        batch: Mapping[str, BatchInput],
        optimizer: Optimizer,
        clip_norm: float | None = None,
        learning_rate: float | Schedule = 1e-3,
        hyper: Mapping[str, float] | None = None,
        seed: int = 0,
        device: str | torch.device = "cpu",
        precision: str | Precision = "float32",
        compile: bool | None = None,  # noqa: A002 - torch's own word for it
        on_non_finite: str = "raise",
    ) -> None:
        if on_non_finite not in ("raise", "skip"):
            raise SessionError(f"on_non_finite is {on_non_finite!r}; use 'raise' or 'skip'")
        if clip_norm is not None and not clip_norm > 0:
            raise SessionError(f"clip_norm is {clip_norm!r}; it must be above 0, or None")
        if not parameters:
            raise SessionError("a session needs at least one parameter table")
        self._loss = loss
        self._device = torch.device(device)
        self._precision = Precision.of(precision)
        self._optimizer = optimizer
        self._clip_norm = clip_norm
        self._schedule = as_schedule(learning_rate)
        self._hyper = {name: float(value) for name, value in (hyper or {}).items()}
        self._seed = _seed(seed)
        self._policy = on_non_finite
        self._compile = self._device.type == "cuda" if compile is None else compile
        self._step_count = 0
        self._counters = Counters()
        self._layouts = {n: _parameter_layout(n, a) for n, a in parameters.items()}
        self._batch = {n: b.layout(n) for n, b in batch.items()}
        self._tables = [ParameterTable(n, tuple(t.dims)) for n, t in self._layouts.items()]
        self._slots = self._state_layouts()
        self._step_sql = step_sql(loss, self._tables, optimizer, clip_norm)
        self._trace = self._traced()
        self._engine = self._make_engine(parameters)
        self._evaluation: DenseProgram | None = None
        self._gradients: DenseProgram | None = None

    # --- construction -----------------------------------------------------------------

    def _state_layouts(self) -> dict[str, CompactTable]:
        """Layout of every state array by slot name: ``w``, ``w.m`` ..."""
        layouts: dict[str, CompactTable] = {}
        taken = set(self._batch) | {"hyper"}
        for table in self._tables:
            layout = self._layouts[table.name]
            layouts[table.name] = layout
            for slot in self._optimizer.slots:
                layouts[f"{table.name}.{slot}"] = replace(layout, name=table.slot(slot))
        for layout in layouts.values():
            if layout.name in taken:
                raise SessionError(f"two tables are called {layout.name!r}; rename one")
            taken.add(layout.name)
        return layouts

    def _all_layouts(self) -> list[CompactTable]:
        return [*self._slots.values(), *self._batch.values(), hyper_layout(self._hyper)]

    def _new_trace(self, sql: str, keep: Sequence[str]) -> StatementTrace:
        return StatementTrace(self._all_layouts(), sql, keep, self._precision)

    def _traced(self) -> StatementTrace:
        try:
            return self._new_trace(self._step_sql.text, self._step_sql.tables)
        except UnsupportedSQL as error:
            raise _explained(error, [t.name for t in self._tables]) from error

    def _loss_column(self) -> str:
        names = self._trace.columns("loss")
        if len(names) != 1:
            raise SessionError(f"loss: the query has columns {list(names)}; it must have one")
        return names[0]

    def _make_engine(self, parameters: Mapping[str, xr.DataArray]) -> StepEngine:
        outputs = [(s, c or self._loss_column()) for s, c in _SCALARS]
        slots = []
        for table in self._tables:
            for slot in (None, *self._optimizer.slots):
                name = f"{table.name}.{slot}" if slot else table.name
                layout = self._slots[name]
                slots.append(StateSlot(name, f"{layout.name}.val", len(outputs)))
                outputs.append((table.next(slot), "val"))
        program = self._trace.program(outputs, self._device)
        for output in program.outputs[: len(_SCALARS)]:
            if output.shape:
                raise SessionError(
                    f"{output.table}: the query has one row for each of {output.dims}; "
                    "it must have one row, so aggregate it"
                )
        state = self._initial_state(parameters)
        return StepEngine(program, slots, state, len(_SCALARS), self._device, self._compile)

    def _initial_state(self, parameters: Mapping[str, xr.DataArray]) -> dict[str, torch.Tensor]:
        dtype = self._element()
        state = {}
        for name, layout in self._slots.items():
            if name in parameters:
                values = np.array(parameters[name].values)
                if not np.isfinite(values).all():
                    at = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
                    raise SessionError(
                        f"parameter {name!r}: value {values[at]} at "
                        f"{dict(zip(layout.dims, at, strict=True))} is not finite"
                    )
                state[name] = torch.tensor(values, dtype=dtype, device=self._device)
            else:
                shape = layout.columns[0].shape
                state[name] = torch.zeros(shape, dtype=dtype, device=self._device)
        return state

    def _element(self) -> torch.dtype:
        return torch.float64 if self._precision is Precision.FLOAT64 else torch.float32

    # --- training ---------------------------------------------------------------------

    @property
    def step_count(self) -> int:
        """Number of updates completed; ``hyper.step`` of the next one."""
        return self._step_count

    @property
    def step_sql(self) -> str:
        """The whole step as one SQL statement: model, loss, gradients, clipping, update."""
        return self._step_sql.text

    @property
    def counters(self) -> Counters:
        """What the session has done so far."""
        return replace(self._counters, compilations=self._engine.compilations)

    def explain(self) -> str:
        """The folded program of a step."""
        return self._engine.explain()

    def step(self, batch: Mapping[str, Any]) -> StepReport:
        """Make one update.

        Raises:
            SessionError, ShapeError, DTypeError, DomainError: the batch is wrong.
            NonFiniteState: loss, gradient or new state is not finite (policy ``"raise"``).
                The state is as it was before, whatever is raised.
        """
        inputs = self._inputs(batch)
        rate = float(self._schedule(self._step_count))
        loss, norm, total = self._engine.run(inputs)
        valid = all(math.isfinite(x) for x in (loss, norm, total))
        uploaded = sum(t.numel() * t.element_size() for t in inputs.values())
        self._count(scalars_read=len(_SCALARS), bytes_uploaded=uploaded)
        if not valid:
            return self._refuse(loss, norm, total, rate)
        self._engine.publish()
        self._step_count += 1
        self._count(steps=1)
        return StepReport(self._step_count, loss, norm, rate, True)

    def _refuse(self, loss: float, norm: float, total: float, rate: float) -> StepReport:
        if self._policy == "raise":
            what = next(
                f"{name} is {value}"
                for name, value in (
                    ("loss", loss),
                    ("gradient norm", norm),
                    ("sum of the new state", total),
                )
                if not math.isfinite(value)
            )
            raise NonFiniteState(
                f"update {self._step_count + 1}: {what}; the state is as it was before. "
                "Lower the learning rate, or use on_non_finite='skip'"
            )
        self._count(skipped=1)
        return StepReport(self._step_count, loss, norm, rate, False)

    def _inputs(self, batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        inputs = checked_batch(self._batch, batch)
        inputs["hyper.step"] = torch.tensor(self._step_count)
        inputs["hyper.seed"] = torch.tensor(self._seed)
        rate = float(self._schedule(self._step_count))
        for name, value in {"lr": rate, **self._hyper}.items():
            inputs[f"hyper.{name}"] = torch.tensor(value, dtype=torch.float64)
        return inputs

    def _count(self, **changes: int) -> None:
        counters = self._counters
        added = {name: getattr(counters, name) + by for name, by in changes.items()}
        self._counters = replace(counters, **added)

    # --- looking at it ----------------------------------------------------------------

    def evaluate(self, batch: Mapping[str, Any]) -> float:
        """The loss of a batch with ``hyper.dropout`` 0; changes nothing."""
        inputs = self._inputs(batch)
        if self._evaluation is None:
            hyper = [c.name for c in hyper_layout(self._hyper).columns]
            trace = self._new_trace(evaluation_sql(self._loss, hyper), ["loss"])
            self._evaluation = trace.program([("loss", self._loss_column())], self._device)
        return float(self._run(self._evaluation, inputs)[0])

    def gradients(self, batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Raw gradients (before clipping) by table, of the upcoming step; changes nothing."""
        inputs = self._inputs(batch)
        if self._gradients is None:
            outputs = [(table.gradient, "val") for table in self._tables]
            self._gradients = self._trace.program(outputs, self._device)
        values = self._run(self._gradients, inputs)
        names = [table.name for table in self._tables]
        return {n: v.cpu().numpy().copy() for n, v in zip(names, values, strict=True)}

    def _run(self, program: DenseProgram, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        state = {f"{self._slots[n].name}.val": t for n, t in self._engine.published.items()}
        arguments = {
            name: state[name] if name in state else inputs[name].to(self._device, dtype)
            for name, dtype in program.inputs.items()
        }
        return program.run(arguments)

    def state(self) -> dict[str, np.ndarray]:
        """A copy of every state array: ``"w"`` for weights, ``"w.m"`` for optimizer slots."""
        copies = {n: t.detach().cpu().numpy().copy() for n, t in self._engine.published.items()}
        self._count(
            arrays_exported=len(copies), bytes_exported=sum(a.nbytes for a in copies.values())
        )
        return copies

    def sql(self, query: str) -> CompactResult:
        """Query the current state: weight tables, and slot tables as ``w_m``; a snapshot."""
        context = CompactContext(self._device, self._precision)
        for name, tensor in self._engine.published.items():
            layout = self._slots[name]
            coords = {d: domain.values() for d, domain in layout.dims.items()}
            context.register(layout.name, tensor, dims=tuple(layout.dims), coords=coords)
        return context.sql(query)

    def dataset(self) -> xr.Dataset:
        """The weights as a Dataset, one variable for each table; a copy."""
        import xarray as xr

        state = self.state()
        arrays = {}
        for table in self._tables:
            layout = self._layouts[table.name]
            # Tables may use one dim name for different sizes, so dims are qualified.
            dims = [f"{table.name}_{d}" for d in layout.dims]
            coords = {
                d: domain.values() for d, domain in zip(dims, layout.dims.values(), strict=True)
            }
            arrays[table.name] = xr.DataArray(state[table.name], dims=dims, coords=coords)
        return xr.Dataset(arrays)

    # --- checkpoints ------------------------------------------------------------------

    def save(
        self, path: str | os.PathLike[str], metrics: Mapping[str, float] | None = None
    ) -> None:
        """Write the whole state to one NPZ file, so that training resumes bit for bit.

        Raises:
            CheckpointError: the file cannot be written; an existing one is untouched.
        """
        save(path, self._checkpoint(metrics))

    def _checkpoint(self, metrics: Mapping[str, float] | None) -> Any:
        return make_checkpoint(
            self.state(),
            step=self._step_count,
            seed=self._seed,
            data_position=self._step_count,
            schedule=self._schedule.to_json(),
            configuration={
                "optimizer": self._optimizer.to_json(),
                "clip_norm": self._clip_norm,
                "hyper": self._hyper,
                "precision": self._precision.value,
            },
            sql_hash=sql_hash(self.step_sql),
            counters={"steps": self._counters.steps, "skipped": self._counters.skipped},
            metrics=dict(metrics or {}),
            copy=False,
        )

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Continue from a checkpoint: weights, optimizer state, step, seed.

        Raises:
            CheckpointError: it is damaged, or of another model; the session is unchanged.
        """
        current = {n: t.detach().cpu().numpy() for n, t in self._engine.published.items()}
        checkpoint = load(path, ExpectedState.of(current, sql_hash(self.step_sql)))
        arrays = {n: torch.tensor(np.array(a)) for n, a in checkpoint.arrays.items()}
        self._engine.replace(arrays)
        self._step_count = int(checkpoint.manifest.step)
        self._seed = int(checkpoint.manifest.seed)


def _seed(seed: int) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise SessionError(f"seed is {seed!r}; it must be an integer from 0 to 2**63 - 1")
    return seed


def _parameter_layout(name: str, array: xr.DataArray) -> CompactTable:
    if not hasattr(array, "dims") or not hasattr(array, "coords"):
        raise SessionError(f"parameter {name!r} is a {type(array).__name__}; give a DataArray")
    dims = tuple(map(str, array.dims))
    if not dims:
        raise SessionError(
            f"parameter {name!r} has no dims, so nothing identifies its row; "
            "give it a dim of size 1"
        )
    if np.dtype(array.dtype).kind != "f":
        raise DTypeError(f"parameter {name!r}: weights must be floats, not {array.dtype}")
    coords = {str(d): array.coords[d].values for d in array.dims if d in array.coords}
    return table_of_array(name, array, dims, "val", None, coords)


def _explained(error: UnsupportedSQL, parameters: list[str]) -> Exception:
    """A ddxdb error about a parameter or the loss, in the session's words."""
    if "NotScalar" in str(error):
        return SessionError(f"loss: the query must return one row and one column ({error})")
    if "UnknownColumn" in str(error):
        named = [p for p in parameters if p in str(error)]
        which = ", ".join(map(repr, named)) or "a parameter"
        return SessionError(f"loss: the query does not read parameter {which} ({error})")
    return error

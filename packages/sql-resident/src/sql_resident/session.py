"""Training sessions: complete training steps in SQL, with the state kept on the device."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from sql_compact import CompactResult, CompactTable, Precision

from .accumulation import Accumulator, checked_micro_weights, micro_seed
from .buffers import Progress, StateBuffers
from .checkpoint import ArraySpec, Checkpoint, save
from .errors import SessionError
from .guards import memory_checked, non_finite
from .inputs import (
    BatchInput,
    check_options,
    checked_batch,
    checked_device,
    checked_hyper,
    checked_seed,
    hyper_inputs,
)
from .layouts import checked_weights, element, initial_state, state_layout
from .optimizers import Optimizer
from .programs import REPORTED, ShapePrograms, run
from .queries import check_query
from .reports import Counters, MemoryUse, StepReport
from .resume import checkpoint_of, read_state
from .schedules import Schedule, as_schedule
from .shapes import BatchShapes, StagedBatch
from .step_sql import Recipe, state_slots
from .target import Target
from .turns import Turn, alone
from .views import StateQueries, dataset_of

if TYPE_CHECKING:
    import xarray as xr

Batch = Mapping[str, Any]


class TrainingSession:
    """A model in SQL under training: weights and optimizer state stay on the device.

    Each step is one tensor program: loss, gradients, clipping, update and validation, all
    written as SQL (:attr:`step_sql`). The new state is published only once it is known to
    be finite; a step that fails for any reason leaves the session as it was.

    A session is used by one thread at a time; another one is refused meanwhile.

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
        seed: of every random number, with the step; 0 <= seed < 2**63.
        precision: what arithmetic runs in; see :class:`sql_compact.Precision`.
        compile: compile the step; default on CUDA only, where it is also captured.
        on_non_finite: ``"raise"``, or ``"skip"`` the batch and count it.
        ema_decay: keep an exponential moving average of the weights, apart from them:
            e <- decay * e + (1 - decay) * w after every update; it starts at the weights.
        batch_shapes: further sets of shapes that batches may have, each by table name
            (tables not named keep theirs). Each is a program of its own.

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
        ema_decay: float | None = None,
        batch_shapes: Sequence[Mapping[str, tuple[int, ...]]] = (),
    ) -> None:
        self._turn = Turn()
        check_query("loss", loss)
        check_options(batch, optimizer, clip_norm, compile, on_non_finite, ema_decay)
        device = checked_device(device)
        compiled = device.type == "cuda" if compile is None else compile
        self._target = Target(device, Precision.of(precision), compiled)
        self._policy = on_non_finite
        scalars = checked_hyper({} if hyper is None else hyper, None)
        progress = Progress(0, 0, checked_seed(seed), as_schedule(learning_rate), scalars)
        slots = state_slots(optimizer, ema_decay)
        self._layout = state_layout(parameters, slots, (*batch, "hyper"))
        self._recipe = Recipe(
            loss, self._layout.tables, optimizer, clip_norm, ema_decay, (*batch, "hyper")
        )
        weights = checked_weights(self._layout, parameters, element(self._target.precision))
        state = initial_state(self._layout, weights, device)
        self._buffers = StateBuffers(state, progress, fixed=self._target.fixed)
        self._shapes = BatchShapes(batch, batch_shapes, self._new_programs)
        self._accumulator: Accumulator | None = None
        self._queries = StateQueries(self._layout, device, self._target.precision)
        self._counters = Counters()

    @property
    def _hyper_names(self) -> tuple[str, ...]:
        return tuple(self._buffers.progress.hyper)

    def _new_programs(self, batch: Mapping[str, CompactTable]) -> ShapePrograms:
        return ShapePrograms(
            self._recipe, self._layout, batch, self._hyper_names, self._buffers, self._target
        )

    # --- what can change between steps, without compiling again ---------------------------

    @property
    def step_count(self) -> int:
        """Number of updates completed; ``hyper.step`` of the next one."""
        return self._buffers.progress.step

    @property
    def data_position(self) -> int:
        """Number of batches used or skipped, so the number of the next one."""
        return self._buffers.progress.data_position

    @property
    def seed(self) -> int:
        """Seed of every random number, with the step."""
        return self._buffers.progress.seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self._set(seed=checked_seed(seed))

    @property
    def learning_rate(self) -> Schedule:
        """The learning rate as a function of the 0-based step; set it to one, or a number."""
        return self._buffers.progress.schedule

    @learning_rate.setter
    def learning_rate(self, learning_rate: float | Schedule) -> None:
        self._set(schedule=as_schedule(learning_rate))

    @property
    def hyper(self) -> dict[str, float]:
        """The user's scalars in the table ``hyper``; a copy."""
        return dict(self._buffers.progress.hyper)

    @alone
    def set_hyper(self, **scalars: float) -> None:
        """Change scalars of the table ``hyper`` from the next step on.

        Raises:
            SessionError: one is unknown, the session's own, or no finite number.
        """
        changed = checked_hyper(scalars, self._hyper_names)
        self._set(hyper={**self._buffers.progress.hyper, **changed})

    @alone
    def _set(self, **changes: Any) -> None:
        self._buffers.set_progress(replace(self._buffers.progress, **changes))

    # --- training -------------------------------------------------------------------------

    @alone
    def stage(self, batch: Batch) -> StagedBatch:
        """Check a batch, copy it, and start its upload, for a later :meth:`step`.

        On CUDA the upload waits for the step in flight but not for the host, so the best
        time is a step's ``meanwhile``. Of several staged batches only the last is on the
        device; another one is uploaded again when its step comes.

        Raises:
            SessionError, ShapeError, DTypeError, DomainError: the batch is wrong.
            OutOfMemory: the device has too little memory.
        """
        programs = self._shapes.of(batch)
        inputs = {n: t.clone() for n, t in checked_batch(programs.batch, batch).items()}
        with memory_checked(self.memory, self._target.device):
            programs.step.prepare(inputs)
        return StagedBatch(programs, inputs)

    @alone
    def step(
        self,
        batch: Batch | StagedBatch | Sequence[Batch | StagedBatch],
        weights: Sequence[float] | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> StepReport:
        """Make one update.

        Args:
            batch: arrays by table name, or what :meth:`stage` made of them; or several such
                micro-batches, whose gradients are averaged, so that a mean loss gives the
                update of one large batch (but for dropout: each micro-batch has masks of
                its own).
            weights: of the micro-batches in that average, such as their token counts.
            meanwhile: called while the device works, to make the next batch ready. It may
                look at the session, but not change it.

        Raises:
            SessionError, ShapeError, DTypeError, DomainError: a batch is wrong, the schedule
                gives no learning rate, or ``meanwhile`` has changed the session (its changes
                stay, the update is not made).
            NonFiniteState: loss, gradient or new state is not finite (policy ``"raise"``).
            OutOfMemory: the device has too little memory.
                Whatever is raised, by ``meanwhile`` or an interrupt too, the state is as it
                was before.
        """
        if meanwhile is not None and not callable(meanwhile):
            raise SessionError(f"meanwhile is {meanwhile!r}; it must be a function, or None")
        progress = self._buffers.progress
        with memory_checked(self.memory, self._target.device):
            if not isinstance(batch, list | tuple):
                if weights is not None:
                    raise SessionError("weights: they are for a list of micro-batches")
                loss, norm, total = self._compute(batch, progress, meanwhile)
            else:
                loss, norm, total = self._compute_accumulated(
                    list(batch), weights, progress, meanwhile
                )
        if self._buffers.progress is not progress:
            raise SessionError(
                "meanwhile: it has changed the session during a step, so the update is not made; "
                "make changes between steps"
            )
        if all(math.isfinite(x) for x in (loss, norm, total)):
            self._buffers.publish(progress.updated())
            self._counters = self._counters.plus(steps=1)
            return StepReport(self.step_count, loss, norm, progress.learning_rate, True)
        if self._policy == "raise":
            raise non_finite(progress.step + 1, (loss, norm, total))
        self._set(skipped=progress.skipped + 1)
        self._counters = self._counters.plus(skipped=1)
        return StepReport(progress.step, loss, norm, progress.learning_rate, False)

    def _compute(
        self,
        batch: Batch | StagedBatch,
        progress: Progress,
        meanwhile: Callable[[], None] | None,
    ) -> list[float]:
        programs, inputs = self._checked(batch)
        numbers = self._hyper_inputs(progress)
        programs.step.start(inputs, numbers)
        if meanwhile is not None:
            meanwhile()
        self._count_run({**inputs, **numbers})
        return programs.step.finish()

    def _compute_accumulated(
        self,
        batches: list[Batch | StagedBatch],
        weights: Sequence[float] | None,
        progress: Progress,
        meanwhile: Callable[[], None] | None,
    ) -> list[float]:
        shares = checked_micro_weights(weights, len(batches))
        if len(batches) == 1:
            return self._compute(batches[0], progress, meanwhile)
        checked = [self._checked(batch) for batch in batches]
        if self._accumulator is None:
            self._accumulator = Accumulator(
                self._recipe, self._layout, self._hyper_names, self._buffers, self._target
            )
        self._accumulator.reset()
        for number, ((programs, inputs), share) in enumerate(zip(checked, shares, strict=True)):
            given = {**inputs, **self._hyper_inputs(progress, number)}
            loss = self._accumulator.add(programs, {**given, **self._weights()}, share)
            self._count_run(given, scalars=1)
            if not math.isfinite(loss):
                return [loss, math.nan, math.nan]
        if meanwhile is not None:
            meanwhile()
        hyper = self._hyper_inputs(progress)
        self._count_run(hyper)
        return self._accumulator.update(hyper)

    def _checked(
        self, batch: Batch | StagedBatch
    ) -> tuple[ShapePrograms, Mapping[str, torch.Tensor]]:
        """The programs for a batch, and its inputs."""
        if isinstance(batch, StagedBatch):
            if batch.programs not in self._shapes.made:
                raise SessionError("batch: it was staged by another session; stage it in this one")
            return batch.programs, batch.inputs
        programs = self._shapes.of(batch)
        return programs, checked_batch(programs.batch, batch)

    def _all_inputs(
        self, batch: Batch | StagedBatch, ema: bool = False
    ) -> tuple[ShapePrograms, Mapping[str, torch.Tensor]]:
        """The programs for a batch, and its inputs with everything else of the upcoming step."""
        programs, inputs = self._checked(batch)
        numbers = self._hyper_inputs(self._buffers.progress)
        return programs, {**inputs, **numbers, **self._weights(ema)}

    def _hyper_inputs(self, progress: Progress, number: int = 0) -> dict[str, torch.Tensor]:
        seed = micro_seed(progress.seed, number)
        return hyper_inputs(progress.step, seed, progress.learning_rate, progress.hyper)

    def _weights(self, ema: bool = False) -> dict[str, torch.Tensor]:
        """The weights (or their averages) as inputs of a program."""
        published = self._buffers.published
        slots = self._layout.weight_slots(ema).items()
        return {self._layout.input(table): published[slot] for table, slot in slots}

    def _count_run(self, inputs: Batch, scalars: int = len(REPORTED)) -> None:
        uploaded = sum(t.numel() * t.element_size() for t in inputs.values())
        self._counters = self._counters.plus(scalars_read=scalars, bytes_uploaded=uploaded)

    # --- looking at it --------------------------------------------------------------------

    @alone
    def evaluate(self, batch: Batch, *, ema: bool = False) -> float:
        """The loss of a batch with ``hyper.dropout`` 0; changes nothing.

        Args:
            ema: of the averaged weights.
        """
        programs, inputs = self._all_inputs(batch, ema)
        with memory_checked(self.memory, self._target.device):
            return programs.evaluation.run(inputs)[0]

    @alone
    def gradients(self, batch: Batch) -> dict[str, np.ndarray]:
        """Raw gradients (before clipping) by table, of the upcoming step; changes nothing."""
        programs, inputs = self._all_inputs(batch)
        with memory_checked(self.memory, self._target.device):
            arrays = run(programs.gradients, inputs, self._target.device)
        return {t.name: a for t, a in zip(self._layout.tables, arrays, strict=True)}

    @property
    def step_sql(self) -> str:
        """The whole step as one SQL statement: model, loss, gradients, clipping, update."""
        return self._shapes.first.sql.text

    @property
    def counters(self) -> Counters:
        """What the session has done so far."""
        compilations = sum(programs.step.compilations for programs in self._shapes.made)
        if self._accumulator is not None:
            compilations += self._accumulator.compilations
        return replace(self._counters, compilations=compilations)

    def explain(self) -> str:
        """The folded program of a step."""
        return self._shapes.first.step.explain()

    def memory(self) -> MemoryUse:
        """What the session needs on its device: measured state, estimated step."""
        state = sum(t.numel() * t.element_size() for t in self._buffers.published.values())
        return MemoryUse(2 * state, self._shapes.first.step.peak_bytes)

    def state(self) -> dict[str, np.ndarray]:
        """A copy of every state array: ``"w"`` for weights, ``"w.m"`` for optimizer slots."""
        return self._exported({name: name for name in self._layout.arrays})

    def weights(self, *, ema: bool = False) -> dict[str, np.ndarray]:
        """A copy of the weights (or their averages) by table."""
        return self._exported(self._layout.weight_slots(ema))

    @alone
    def _exported(self, slots: Mapping[str, str]) -> dict[str, np.ndarray]:
        published = self._buffers.published
        copies = {n: published[s].detach().cpu().numpy().copy() for n, s in slots.items()}
        self._counters = self._counters.plus(
            arrays_exported=len(copies), bytes_exported=sum(a.nbytes for a in copies.values())
        )
        return copies

    @alone
    def sql(self, query: str) -> CompactResult:
        """Query the current state, on the device: weights by table name, slots as ``w_m``."""
        return self._queries.sql(query, self._buffers.published)

    def dataset(self, *, ema: bool = False) -> xr.Dataset:
        """The weights (or their averages) as a Dataset, one variable for each table; a copy."""
        return dataset_of(self._layout, self.weights(ema=ema))

    @property
    def weight_specs(self) -> dict[str, ArraySpec]:
        """Shape and dtype of every parameter table."""
        arrays = self._layout.arrays
        dtype = str(element(self._target.precision)).removeprefix("torch.")
        shapes = {t.name: arrays[t.name].columns[0].shape for t in self._layout.tables}
        return {name: ArraySpec(shape, dtype) for name, shape in shapes.items()}

    @alone
    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Start training anew from these weights: step 0, optimizer state 0.

        Args:
            weights: an array for each parameter table: numpy, torch or DataArray.

        Raises:
            SessionError, ShapeError, DTypeError: they do not fit; nothing has changed then.
        """
        checked = checked_weights(self._layout, weights, element(self._target.precision))
        state = initial_state(self._layout, checked, self._target.device)
        self._buffers.load(state, replace(self._buffers.progress, step=0, skipped=0))

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse copying and pickling: copies would share the buffers of the state."""
        raise SessionError(
            "a session can be neither copied nor pickled; save its state, and restore it in a "
            "session made from the same arguments"
        )

    # --- checkpoints ----------------------------------------------------------------------

    @alone
    def checkpoint(self, metrics: Mapping[str, float] | None = None) -> Checkpoint:
        """The whole state in memory, for :meth:`CheckpointFolder.save`.

        Raises:
            SessionError: ``metrics`` are not numbers by name.
        """
        if not isinstance(metrics, Mapping | None):
            raise SessionError(f"metrics is {metrics!r}; it must map names to numbers")
        configuration: dict[str, Any] = {
            "optimizer": self._recipe.optimizer.to_json(),
            "clip_norm": self._recipe.clip_norm,
            "ema_decay": self._recipe.ema_decay,
            "precision": self._target.precision.value,
        }
        return checkpoint_of(
            self.state(), self._buffers.progress, self.step_sql, configuration, metrics
        )

    def save(
        self, path: str | os.PathLike[str], metrics: Mapping[str, float] | None = None
    ) -> None:
        """Write the whole state to one NPZ file, so that training resumes bit for bit.

        Raises:
            CheckpointError: the file cannot be written; an existing one is untouched.
        """
        save(path, self.checkpoint(metrics))

    @alone
    def restore(self, path: str | os.PathLike[str]) -> None:
        """Continue from a checkpoint: weights, optimizer state, step, data position, seed,
        schedule and scalars, all of them or (if anything is wrong) none.

        Raises:
            CheckpointError: it is damaged, or of another model; the session is unchanged.
        """
        buffers = self._buffers
        restored = read_state(path, buffers.published, buffers.progress, self.step_sql)
        buffers.load(restored.arrays, restored.progress)

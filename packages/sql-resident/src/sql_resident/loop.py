"""A training loop: updates until something says stop, with evaluation and checkpoints."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any

from .arguments import kind, real
from .checkpoint import CheckpointFolder
from .errors import CheckpointError, NonFiniteState, SessionError
from .reports import StepReport
from .session import TrainingSession
from .shapes import StagedBatch

Batch = Mapping[str, Any]

#: Name of the validation loss among a checkpoint's metrics.
VALIDATION_LOSS = "validation_loss"
#: Skipped batches in a row after which a loop gives up.
_SKIP_LIMIT = 100


class StopReason(Enum):
    """Why a loop ended."""

    STEPS = "steps"
    TIME = "time"
    EARLY_STOPPING = "early stopping"
    INTERRUPT = "interrupt"


@dataclass(frozen=True, slots=True)
class FitResult:
    """What a loop did.

    Attributes:
        reason: why it ended.
        updates: updates it made.
        last: report of the last one; None if none was made.
        validation: (step, validation loss) of every evaluation.
        checkpoint: the file that holds the state at the end, if there is a folder.
    """

    reason: StopReason
    updates: int
    last: StepReport | None
    validation: tuple[tuple[int, float], ...]
    checkpoint: Path | None

    @property
    def best(self) -> tuple[int, float] | None:
        """The evaluation with the lowest loss, the first of equal ones."""
        return min(self.validation, key=lambda found: found[1], default=None)


def fit(
    session: TrainingSession,
    batches: Callable[[int], Batch | Sequence[Batch]],
    *,
    steps: int,
    max_time: float | None = None,
    validate: Callable[[TrainingSession], float] | None = None,
    validate_every: int = 100,
    patience: int | None = None,
    min_improvement: float = 0.0,
    checkpoints: CheckpointFolder | None = None,
    save_every: int | None = None,
    on_report: Callable[[StepReport], None] | None = None,
) -> FitResult:
    """Train until the session has made ``steps`` updates, or something else ends it.

    Ctrl-C ends the loop after the current update; a second one interrupts at once (the
    session is left whole even then). However else it ends, by an error too, the state is
    saved if there is a folder, so that calling ``fit`` again on a restored session continues
    bit for bit.

    Args:
        batches: the batch (or list of micro-batches) of a data position. It must be a pure
            function of it, with a seed of its own: then a resumed run sees the batches that
            an uninterrupted one would, and no generator state needs to be kept. The batch
            of the next position is asked for while the device works on the current one.
        steps: total updates of the session, those before this call included.
        max_time: seconds; no update starts later.
        validate: gives the validation loss, for example a mean of ``session.evaluate``; it
            is called every ``validate_every`` updates.
        patience: stop after this many evaluations in a row without an improvement of more
            than ``min_improvement``. It counts from the start of this call.
        checkpoints: where to save: after each evaluation, with its loss as the metric
            ``validation_loss``; every ``save_every`` updates; and at the end.
        on_report: called after every update.

    Raises:
        SessionError: an argument is of the wrong kind or out of range, or what ``step`` raises.
        NonFiniteState: 100 batches in a row were skipped.
        CheckpointError: a save failed.
    """
    if not callable(batches):
        raise SessionError(
            f"fit: batches is a {type(batches).__name__}; it must be a function from a data "
            "position to a batch, such as lambda position: stored[position]"
        )
    if not isinstance(session, TrainingSession):
        raise SessionError(f"fit: session is a {kind(session)}; it must be a TrainingSession")
    _check_functions(validate, on_report, checkpoints)
    _check(steps, max_time, validate_every, patience, save_every)
    _check_watching(validate, patience, min_improvement, checkpoints, save_every)
    loop = _Loop(session, checkpoints)
    ahead = _Ahead(session, batches)
    started, first = time.monotonic(), session.step_count
    stopping = _EarlyStopping(patience, min_improvement)
    reason = StopReason.STEPS
    with _interrupts() as interrupted, loop.saving_when_it_fails():
        while session.step_count < steps:
            if interrupted.is_set():
                reason = StopReason.INTERRUPT
                break
            if max_time is not None and time.monotonic() - started >= max_time:
                reason = StopReason.TIME
                break
            last = session.step_count + 1 == steps
            loop.last = session.step(ahead.take(), meanwhile=None if last else ahead.prepare)
            if on_report is not None:
                on_report(loop.last)
            if not loop.last.valid:
                loop.skip()
                continue
            loop.skipped = 0
            if validate is not None and session.step_count % validate_every == 0:
                loss = loop.evaluate(validate)
                if stopping.ends(loss):
                    reason = StopReason.EARLY_STOPPING
                    break
            elif save_every is not None and session.step_count % save_every == 0:
                loop.save()
        loop.finish()
    return FitResult(
        reason, session.step_count - first, loop.last, tuple(loop.validation), loop.file
    )


class _Ahead:
    """The next batch, made ready while the device works on the current one."""

    def __init__(
        self, session: TrainingSession, batches: Callable[[int], Batch | Sequence[Batch]]
    ) -> None:
        self._session = session
        self._batches = batches
        self._position = -1
        self._batch: StagedBatch | Batch | Sequence[Batch] = {}

    def take(self) -> StagedBatch | Batch | Sequence[Batch]:
        """The batch of the session's data position."""
        if self._position == self._session.data_position:
            return self._batch
        return self._batches(self._session.data_position)

    def prepare(self) -> None:
        """Make the batch after the current one ready; one that is wrong waits for its turn."""
        position = self._session.data_position + 1
        try:
            batch = self._batches(position)
            self._batch = self._session.stage(batch) if isinstance(batch, Mapping) else batch
        except Exception:
            return
        self._position = position


class _Loop:
    """What a loop has found and saved so far."""

    def __init__(self, session: TrainingSession, folder: CheckpointFolder | None) -> None:
        self._session = session
        self._folder = folder
        self._saved: int | None = None
        self.skipped = 0
        self.last: StepReport | None = None
        self.validation: list[tuple[int, float]] = []
        self.file: Path | None = None

    def evaluate(self, validate: Callable[[TrainingSession], float]) -> float:
        given = validate(self._session)
        found = real(given.item() if getattr(given, "ndim", None) == 0 else given)
        if found is None:
            raise SessionError(f"fit: validate gives {given!r}; it must give the validation loss")
        loss = found
        self.validation.append((self._session.step_count, loss))
        self.save({VALIDATION_LOSS: loss})
        return loss

    def save(self, metrics: Mapping[str, float] | None = None) -> None:
        if self._folder is not None:
            self.file = self._folder.save(self._session.checkpoint(metrics))
            self._saved = self._session.data_position

    def skip(self) -> None:
        """Note a batch that was skipped, and give up when nothing else happens."""
        self.skipped += 1
        if self.skipped >= _SKIP_LIMIT:
            raise NonFiniteState(
                f"{self.skipped} batches in a row gave no finite update; the state is that of "
                f"step {self._session.step_count}. Lower the learning rate"
            )

    @contextmanager
    def saving_when_it_fails(self) -> Iterator[None]:
        """Save the last whole state when something raises inside; an interrupt is not kept waiting.

        What was raised is what the caller must see, so a save that fails then is only noted.
        """
        try:
            yield
        except Exception as error:
            try:
                self.finish()
            except CheckpointError as also:
                error.add_note(f"the state of step {self._session.step_count} is not saved: {also}")
            raise

    def finish(self) -> None:
        """Save the last state, unless its file is there already, with its metrics."""
        if self._saved != self._session.data_position:
            self.save()


class _EarlyStopping:
    def __init__(self, patience: int | None, min_improvement: float) -> None:
        self._patience = patience
        self._min_improvement = min_improvement
        self._best = math.inf
        self._without = 0

    def ends(self, loss: float) -> bool:
        """Whether training ends after an evaluation of this loss; NaN is no improvement."""
        if loss < self._best - self._min_improvement:
            self._best, self._without = loss, 0
        else:
            self._without += 1
        return self._patience is not None and self._without >= self._patience


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """An event that the first SIGINT sets; later ones do what they did before.

    Signals reach the main thread only, so elsewhere the event is never set.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: FrameType | None) -> None:
        event.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


def _check_functions(validate: Any, on_report: Any, checkpoints: CheckpointFolder | None) -> None:
    for name, given in (("validate", validate), ("on_report", on_report)):
        if given is not None and not callable(given):
            raise SessionError(f"fit: {name} is a {kind(given)}; it must be a function")
    # By what it does, so that a folder of the user's own will do.
    if checkpoints is not None and not callable(getattr(checkpoints, "save", None)):
        raise SessionError(
            f"fit: checkpoints is a {kind(checkpoints)}; it must be a CheckpointFolder"
        )


def _check(
    steps: int,
    max_time: float | None,
    validate_every: int,
    patience: int | None,
    save_every: int | None,
) -> None:
    counts = {"validate_every": validate_every, "patience": patience, "save_every": save_every}
    for name, count in counts.items():
        if count is None and name != "validate_every":
            continue
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise SessionError(f"fit: {name} is {count!r}; it must be a whole number of at least 1")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise SessionError(f"fit: steps is {steps!r}; it must be a whole number of updates")
    if max_time is not None:
        seconds = real(max_time)
        if seconds is None or not seconds >= 0:
            raise SessionError(f"fit: max_time is {max_time!r}; it must be seconds, at least 0")


def _check_watching(
    validate: Callable[[TrainingSession], float] | None,
    patience: int | None,
    min_improvement: float,
    checkpoints: CheckpointFolder | None,
    save_every: int | None,
) -> None:
    least = real(min_improvement)
    if least is None or not math.isfinite(least):
        raise SessionError(f"fit: min_improvement is {min_improvement!r}; it must be a number")
    if patience is not None and validate is None:
        raise SessionError("fit: patience needs validate, the validation loss to watch")
    if save_every is not None and checkpoints is None:
        raise SessionError("fit: save_every needs checkpoints, the folder to save in")

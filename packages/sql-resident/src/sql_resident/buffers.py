"""The state of a session: two sets of arrays, and the numbers that belong to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch

from .schedules import Constant, Schedule, rate_at

Arrays = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Progress:
    """Everything about a session's state that is not an array.

    Attributes:
        step: updates completed; ``hyper.step`` of the next one.
        skipped: batches passed over because something was not finite.
        seed: of every random number, with the step.
        schedule: the learning rate by step.
        hyper: the user's scalars in the table ``hyper``.
    """

    step: int = 0
    skipped: int = 0
    seed: int = 0
    schedule: Schedule = field(default_factory=lambda: Constant(0.0))
    hyper: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hyper", MappingProxyType(dict(self.hyper)))

    @property
    def data_position(self) -> int:
        """Number of the next batch: batches used or passed over so far."""
        return self.step + self.skipped

    @property
    def learning_rate(self) -> float:
        """Of the next update.

        Raises:
            SessionError: the schedule gives none.
        """
        return rate_at(self.schedule, self.step)

    def updated(self) -> Progress:
        """After one more update."""
        return replace(self, step=self.step + 1)


@dataclass(frozen=True, slots=True)
class _Current:
    """What one assignment makes current."""

    published: Arrays
    spare: Arrays | None
    progress: Progress


class StateBuffers:
    """Two sets of arrays: the published one is read, the spare one is written.

    Everything that is current hangs on one attribute, so that a publish is one assignment:
    whatever interrupts it, the state is the old one or the new one.

    Args:
        state: the initial arrays by name; they are not copied.
        progress: what belongs to them.
        fixed: both sets keep their places in memory, as CUDA graphs need; otherwise arrays
            are never written to, only replaced.
    """

    def __init__(
        self,
        state: Mapping[str, torch.Tensor],
        progress: Progress | None = None,
        fixed: bool = False,
    ) -> None:
        self._current = _Current(dict(state), None, progress or Progress())
        self._fixed = fixed

    @property
    def published(self) -> Arrays:
        """The current arrays by name."""
        return self._current.published

    @property
    def progress(self) -> Progress:
        """What belongs to the current arrays."""
        return self._current.progress

    def spare(self) -> Arrays:
        """The arrays to write the next state to, made on the first call."""
        current = self._current
        if current.spare is None:
            spare = {n: torch.empty_like(t) for n, t in current.published.items()}
            self._current = current = replace(current, spare=spare)
        assert current.spare is not None
        return current.spare

    def stage(self, arrays: Arrays) -> None:
        """Take ``arrays`` themselves as the next state, instead of writing to the spare ones."""
        self._current = replace(self._current, spare=arrays)

    def publish(self, progress: Progress) -> None:
        """Make the spare arrays current, and ``progress`` with them."""
        current = self._current
        assert current.spare is not None
        self._current = _Current(current.spare, current.published, progress)

    def set_progress(self, progress: Progress) -> None:
        """Replace what is not an array."""
        self._current = replace(self._current, progress=progress)

    def load(self, arrays: Mapping[str, torch.Tensor], progress: Progress) -> None:
        """Make copies of ``arrays`` (some may be missing: those stay) and ``progress`` current.

        A failure on the way changes nothing.
        """
        sources = {**self._current.published, **arrays}
        if self._fixed:
            for name, target in self.spare().items():
                target.copy_(sources[name])
        else:
            copies = {
                name: sources[name].to(device=own.device, dtype=own.dtype, copy=True)
                for name, own in self._current.published.items()
            }
            self.stage(copies)
        self.publish(progress)

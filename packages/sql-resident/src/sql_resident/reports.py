"""What a session tells: snapshots that later steps do not change."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one update did.

    Attributes:
        step: number of updates completed, this one included.
        loss: before the update.
        grad_norm: global norm of the raw gradient.
        learning_rate: of this update.
        valid: whether loss, gradient and new state are finite, so the update was made.
    """

    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    valid: bool


@dataclass(frozen=True, slots=True)
class Counters:
    """What a session has done since it was made; restoring changes none of it.

    Attributes:
        compilations: of training programs (uncompiled ones: lowerings); 1 after the first
            step, ever after. Each declared batch shape adds one when first used, gradient
            accumulation two.
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

    def plus(self, **changes: int) -> Counters:
        """The counters with these numbers added."""
        values = {name: getattr(self, name) for name in self.__slots__}
        for name, by in changes.items():
            values[name] += by
        return Counters(**values)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory of a session on its device, in bytes.

    Attributes:
        state: weights and slots, twice: the published set and the spare one.
        step: estimated peak of everything else during a step: inputs, activations,
            cotangents and gradients, from when each is made until its last use.
    """

    state: int
    step: int

    @property
    def total(self) -> int:
        """State and step together."""
        return self.state + self.step

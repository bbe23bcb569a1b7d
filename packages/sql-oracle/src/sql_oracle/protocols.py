"""What the oracle asks of a training session: numpy arrays and a handful of scalars.

``sql_resident.TrainingSession`` has this interface; so can any other trainer.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating]
Batch = Mapping[str, npt.NDArray[Any]]


class StepReport(Protocol):
    """What a session says about one update."""

    @property
    def loss(self) -> float:
        """Loss before the update."""

    @property
    def grad_norm(self) -> float:
        """Global norm of the raw gradients."""

    @property
    def learning_rate(self) -> float:
        """Learning rate of the update."""


class Session(Protocol):
    """A session that can be judged."""

    @property
    def step_count(self) -> int:
        """Completed updates."""

    def gradients(self, batch: Batch) -> Mapping[str, Array]:
        """Raw gradients of every parameter table at the current state; changes nothing."""

    def step(self, batch: Batch) -> StepReport:
        """One update."""

    def state(self) -> Mapping[str, Array]:
        """Copies of the weights (``"w"``) and of the optimizer's slots (``"w.m"``, ``"w.v"``)."""

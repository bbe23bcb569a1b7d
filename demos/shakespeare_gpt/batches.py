"""Batches as a pure function of seed and step, so that a resumed run needs no generator state."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from .errors import ConfigError

__all__ = ["BatchSource", "Stream"]


class Stream(IntEnum):
    """What a batch is drawn for; each has random numbers of its own."""

    UPDATE = 0
    EVALUATE_TRAINING = 1
    EVALUATE_VALIDATION = 2


@dataclass(frozen=True, slots=True, eq=False)
class BatchSource:
    """Random windows of two token sequences.

    Parameters
    ----------
    training, validation:
        Tokens, each of at least ``context + 1`` entries.
    batch, context:
        Windows in a batch, and tokens in a window.
    seed:
        A whole number of at least 0.
    """

    training: npt.NDArray[np.int64]
    validation: npt.NDArray[np.int64]
    batch: int
    context: int
    seed: int

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ConfigError(f"batch must be at least 1, not {self.batch}")
        if self.seed < 0:
            raise ConfigError(f"seed must be at least 0, not {self.seed}")

    def draw(self, stream: Stream, step: int, index: int = 0) -> dict[str, npt.NDArray[np.int64]]:
        """Batch ``index`` of ``stream`` at ``step``: ``tokens`` and ``targets``, the tokens one
        position later, both of shape ``(batch, context)``."""
        source = self.validation if stream is Stream.EVALUATE_VALIDATION else self.training
        entropy = np.random.SeedSequence((self.seed, int(stream), step, index))
        starts = np.random.Generator(np.random.Philox(entropy)).integers(
            0, len(source) - self.context, size=(self.batch, 1)
        )
        positions = starts + np.arange(self.context)
        return {"tokens": source[positions], "targets": source[positions + 1]}

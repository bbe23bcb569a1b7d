"""Where a model's dropout masks come from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sql_oracle.philox import dropout_keep


class MaskSource(Protocol):
    """Gives the mask of one dropout site for one forward pass."""

    def __call__(
        self, site: int, shape: Sequence[int], dtype: npt.DTypeLike
    ) -> npt.NDArray[np.floating] | None:
        """Multipliers of ``shape``, or None where nothing is dropped."""


@dataclass(frozen=True, slots=True)
class NoMasks:
    """Dropout off, as in evaluation."""

    def __call__(self, site: int, shape: Sequence[int], dtype: npt.DTypeLike) -> None:
        return None


@dataclass(frozen=True, slots=True)
class PhiloxMasks:
    """Masks of one training step from the documented generator.

    Attributes:
        rate: dropout probability in [0, 1).
        seed: the session's seed.
        step: number of completed updates; 0 for the first.
    """

    rate: float
    seed: int
    step: int

    def __call__(
        self, site: int, shape: Sequence[int], dtype: npt.DTypeLike
    ) -> npt.NDArray[np.floating] | None:
        if self.rate == 0.0:
            return None
        return dropout_keep(self.rate, self.seed, self.step, site, shape, dtype)


class RememberedMasks:
    """The masks of one forward pass, each computed once however often it is asked for.

    Args:
        source: gives the masks; they must not change while this object is used.
    """

    def __init__(self, source: MaskSource) -> None:
        self._source = source
        self._known: dict[
            tuple[int, tuple[int, ...], np.dtype[Any]], npt.NDArray[np.floating] | None
        ] = {}

    def __call__(
        self, site: int, shape: Sequence[int], dtype: npt.DTypeLike
    ) -> npt.NDArray[np.floating] | None:
        key = (site, tuple(shape), np.dtype(dtype))
        if key not in self._known:
            self._known[key] = self._source(site, shape, dtype)
        return self._known[key]

"""Gradient accumulation: sums over micro-batches, in tables of their own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from .arguments import kind, real
from .buffers import Progress, StateBuffers
from .engine import StepEngine
from .errors import SessionError
from .layouts import StateLayout, element
from .programs import ShapePrograms, accumulated_update, sum_layouts
from .step_sql import MICRO_BATCH, Recipe
from .target import Target

#: Bit position of the micro-batch's number in the seed of its random numbers.
_SEED_SHIFT = 32


def micro_seed(seed: int, number: int) -> int:
    """Seed of the random numbers of micro-batch ``number``: the session's own for the first.

    Micro-batches have the same indices, so with one seed their dropout masks would be the
    same. The number goes to the second word of the generator's key, so that no two
    micro-batches share a stream.
    """
    return seed ^ (number << _SEED_SHIFT)


def checked_micro_weights(weights: Sequence[float] | None, count: int) -> list[float]:
    """Weights of the micro-batches, such as token counts; all 1 by default.

    They are divided by a power of two, which rounds nothing, so that the largest is about 1: sums
    of huge or tiny ones leave the range of floats.

    Raises:
        SessionError: there are none, or not ``count``, or one is not positive and finite.
    """
    if count == 0:
        raise SessionError("batch: the list of micro-batches is empty")
    if weights is None:
        return [1.0] * count
    if isinstance(weights, str) or not hasattr(weights, "__len__"):
        raise SessionError(f"weights is a {kind(weights)}; give a list of {count} numbers")
    if len(weights) != count:
        raise SessionError(f"weights: {len(weights)} for {count} micro-batches")
    checked = []
    for number, weight in enumerate(weights):
        found = real(weight.item() if getattr(weight, "ndim", None) == 0 else weight)
        if found is None or not 0 < found < math.inf:
            raise SessionError(
                f"weights: that of micro-batch {number} is {weight!r}; it must be a positive number"
            )
        checked.append(found)
    _, exponent = math.frexp(max(checked))
    return [math.ldexp(weight, 1 - exponent) for weight in checked]


class Accumulator:
    """Adds up the gradients of micro-batches, and makes the update from them.

    The sums are no part of the session's state: they start at 0 in every step.

    Raises:
        CompactError: the update from sums cannot be traced.
    """

    def __init__(
        self,
        recipe: Recipe,
        layout: StateLayout,
        hyper: Sequence[str],
        buffers: StateBuffers,
        target: Target,
    ) -> None:
        self._update = accumulated_update(recipe, layout, hyper, buffers, target)
        self._inputs: dict[str, str] = {}
        zeros = {}
        for table in sum_layouts(layout):
            for column in table.columns:
                # Single numbers are summed as SQL says, arrays in the state's element type.
                name = table.name if column.shape else column.name
                kind = element(target.precision) if column.shape else torch.float64
                zeros[name] = torch.zeros(column.shape, dtype=kind, device=target.device)
                self._inputs[name] = table.input_name(column)
        self._zeros = zeros
        self._sums = StateBuffers({n: t.clone() for n, t in zeros.items()}, fixed=target.fixed)
        self._engines: dict[int, StepEngine] = {}

    @property
    def compilations(self) -> int:
        """Of the programs that add and the one that updates."""
        return self._update.compilations + sum(e.compilations for e in self._engines.values())

    def reset(self) -> None:
        """Start a step: all sums are 0."""
        self._sums.load(self._zeros, Progress())

    def add(
        self, programs: ShapePrograms, inputs: Mapping[str, torch.Tensor], weight: float
    ) -> float:
        """Add one micro-batch; returns its loss."""
        engine = self._engines.get(id(programs))
        if engine is None:
            engine = self._engines[id(programs)] = programs.accumulation(self._sums)
        number = torch.tensor(weight, dtype=torch.float64)
        (loss,) = engine.run({**inputs, f"{MICRO_BATCH}.weight": number})
        self._sums.publish(Progress())
        return loss

    def update(self, hyper: Mapping[str, torch.Tensor]) -> list[float]:
        """Compute the next state from the sums; returns the reported numbers."""
        sums = {self._inputs[n]: t for n, t in self._sums.published.items()}
        return self._update.run({**hyper, **sums})

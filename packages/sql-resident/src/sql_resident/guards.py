"""What can go wrong while a step runs, as typed errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from .errors import NonFiniteState, OutOfMemory
from .reports import MemoryUse

_NUMBERS = ("loss", "gradient norm", "sum of the new state")


def non_finite(update: int, numbers: Sequence[float]) -> NonFiniteState:
    """The error of an update whose reported numbers are not all finite."""
    named = zip(_NUMBERS, numbers, strict=True)
    what = next(f"{name} is {value}" for name, value in named if not math.isfinite(value))
    return NonFiniteState(
        f"update {update}: {what}; the state is as it was before. "
        "Lower the learning rate, or use on_non_finite='skip'"
    )


@contextmanager
def memory_checked(need: Callable[[], MemoryUse], device: torch.device) -> Iterator[None]:
    """Turn running out of memory into an error that says what is needed.

    Raises:
        OutOfMemory: torch or Python ran out of memory inside.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise _out_of_memory(need(), device) from error
    except RuntimeError as error:
        # torch has no type of its own for the memory of the CPU.
        if "DefaultCPUAllocator" not in str(error):
            raise
        raise _out_of_memory(need(), device) from error


def _out_of_memory(need: MemoryUse, device: torch.device) -> OutOfMemory:
    return OutOfMemory(
        f"the step does not fit on {device}: it needs about {need.total / 2**20:,.0f} MiB, "
        f"{need.state / 2**20:,.0f} MiB of it state. Accumulate smaller batches, or make the "
        "model smaller"
    )

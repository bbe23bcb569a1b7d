"""Checks of what a user gives to :func:`sql_oracle.check`, before anything is trained."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from sql_oracle.errors import BatchError, OracleError

_SESSION = ("step_count", "gradients", "step", "state")


def real(value: Any) -> float | None:
    """A number as a float, infinite where floats end; None for anything else."""
    if getattr(value, "ndim", None) == 0:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def check_sides(session: Any, module: Any, mapping: Any, optimizer: Any) -> None:
    """Refuse what cannot be the two sides and their connection.

    Raises:
        OracleError: naming the argument.
    """
    lacking = [name for name in _SESSION if not hasattr(session, name)]
    if isinstance(session, type) or lacking:
        raise OracleError(
            f"session is {_named(session)}; it must be an object with {', '.join(_SESSION)}, such "
            "as a TrainingSession"
        )
    if not isinstance(module, nn.Module):
        raise OracleError(f"module is {_named(module)}; it must be a torch.nn.Module")
    frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
    if frozen:
        raise OracleError(
            f"module: its parameters {', '.join(frozen)} take no gradient; call requires_grad_()"
        )
    if not hasattr(mapping, "validate"):
        raise OracleError(f"mapping is {_named(mapping)}; it must be a sql_oracle.Mapping")
    if isinstance(optimizer, type) or not hasattr(optimizer, "build"):
        raise OracleError(
            f"optimizer is {_named(optimizer)}; it must be options that build a torch optimizer, "
            "such as AdamWOptions(weight_decay=0.01)"
        )


def check_run(
    batches: Any, steps: int | None, clip_norm: float | None, device: str, tolerance: Any
) -> None:
    """Refuse a run that cannot be made.

    Raises:
        OracleError: naming the argument.
    """
    if isinstance(batches, Mapping | str) or not isinstance(batches, Iterable):
        raise BatchError(
            f"batches is {_named(batches)}; it must be a list of batches, each with arrays by name"
        )
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        raise BatchError(f"steps is {steps!r}; it must be a whole number of at least 1, or None")
    if clip_norm is not None:
        limit = real(clip_norm)
        if limit is None or not 0 < limit < math.inf:
            raise OracleError(f"clip_norm is {clip_norm!r}; it must be above 0, or None")
    check_device(device)
    if tolerance is not None and not hasattr(tolerance, "limits"):
        raise OracleError(f"tolerance is {_named(tolerance)}; it must be a Tolerance, or None")


def check_device(device: Any) -> None:
    """Refuse a device that is not there.

    Raises:
        OracleError: it is neither the CPU nor a CUDA device of this machine.
    """
    try:
        found = torch.device(device) if isinstance(device, str) else None
    except RuntimeError:
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise OracleError(f"device is {device!r}; use 'cpu', 'cuda' or 'cuda:N'")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise OracleError(
            f"device is {device!r}; torch finds {torch.cuda.device_count()} CUDA devices; use 'cpu'"
        )


def check_functions(**given: Any) -> None:
    """Refuse what cannot be called, of the arguments that are not None.

    Raises:
        OracleError: naming the argument.
    """
    for name, value in given.items():
        if value is not None and not callable(value):
            raise OracleError(f"{name} is {_named(value)}; it must be a function")


def checked_rates(schedule: Callable[[int], float], first: int, count: int) -> list[float]:
    """The learning rates of the updates.

    Raises:
        OracleError: one is no finite number of at least 0.
    """
    rates = []
    for step in range(first, first + count):
        given = schedule(step)
        rate = real(given)
        if rate is None or not 0 <= rate < math.inf:
            raise OracleError(
                f"learning_rate: that of update {step} is {given!r}; it must be a finite number, "
                "not negative"
            )
        rates.append(rate)
    return rates


def check_takes(module: nn.Module, batch: Mapping[str, Any]) -> None:
    """Refuse a batch whose names are not those that a module is called with.

    Raises:
        BatchError: naming both.
    """
    taken = inspect.signature(module.forward)
    try:
        taken.bind(**batch)
    except TypeError as error:
        raise BatchError(
            f"the module's forward{taken} cannot be called with {', '.join(batch)} ({error}); "
            "give loss, a function of the module and the batch"
        ) from error


def check_loss(loss: Any) -> None:
    """Refuse a loss that autograd cannot begin from.

    Raises:
        BatchError: it is not one real number of the graph.
    """
    if not isinstance(loss, torch.Tensor):
        raise BatchError(f"the module's loss is {_named(loss)}, not a tensor")
    if loss.numel() != 1:
        raise BatchError(f"the module's loss has shape {tuple(loss.shape)}, not one value")
    if not loss.dtype.is_floating_point:
        raise BatchError(f"the module's loss is of type {loss.dtype}, not a float")
    if not loss.requires_grad:
        raise BatchError(
            "the module's loss has no gradient: it was detached, or reads no parameter"
        )


def _named(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"of type {type(value).__name__}"

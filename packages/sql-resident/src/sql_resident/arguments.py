"""Checks of arguments that several modules need."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from .errors import SessionError


def real(value: Any) -> float | None:
    """A number as a float, infinite where floats end; None for anything else.

    Truth values, strings and arrays are no numbers, whatever ``float`` makes of them.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def kind(value: Any) -> str:
    """Name of a value's type, for messages."""
    return type(value).__name__


def check_name(what: str, name: Any) -> None:
    """Refuse a name that SQL cannot have.

    Raises:
        SessionError: it is no string, or empty.
    """
    if not isinstance(name, str) or not name:
        raise SessionError(f"{what}: {name!r} is no name; use a string that is not empty")


def checked_array(where: str, array: Any) -> Any:
    """An array whose values can be read, of a type that the next checks know.

    Raises:
        SessionError: it is no array, or does not have all its values.
    """
    if not hasattr(array, "shape"):
        raise SessionError(
            f"{where}: it is a {kind(array)}; give a numpy array, a torch tensor or a DataArray"
        )
    if isinstance(array, torch.Tensor):
        if array.layout is not torch.strided or array.is_meta:
            raise SessionError(f"{where}: give a dense tensor that has values, such as on the CPU")
        # torch neither compares these types nor finds their largest value.
        wide = array.dtype in (torch.uint16, torch.uint32, torch.uint64)
        return array.to(torch.int64) if wide else array
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise SessionError(f"{where}: some of its values are masked; fill them first")
    if isinstance(array, np.ndarray) and array.dtype.kind == "u" and array.itemsize > 1:
        return array.astype(np.int64)
    return array


def dims_of(array: Any) -> tuple[str, ...] | None:
    """Names of a DataArray's dims; None for other arrays."""
    if hasattr(array, "dims") and hasattr(array, "coords"):
        return tuple(map(str, array.dims))
    return None

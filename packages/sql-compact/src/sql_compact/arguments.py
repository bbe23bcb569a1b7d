"""Checks of arguments: a value of the wrong kind is refused where it is given, by name.

What data, names and numbers mean is checked elsewhere; here is only what would otherwise
end as an error of Python, torch or numpy, or be ignored.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np
import torch

from .errors import ArgumentError, DomainError, DTypeError, InvalidSQL, UnknownColumn

#: One more than the largest number of values that positions of 64 bits tell apart.
_POSITIONS = 1 << 63


def kind_of(value: Any) -> str:
    """The name of a value's type, for a message."""
    return type(value).__name__


def checked_name(name: Any, what: str) -> str:
    """A name of a table, view, dim or column.

    Raises:
        ArgumentError: it is not text, or nothing that SQL can write.
    """
    if not isinstance(name, str):
        raise ArgumentError(f"{what} is {name!r}, a {kind_of(name)}; it must be a string")
    if not name.strip() or "\0" in name:
        raise ArgumentError(f"{what} is {name!r}; a name needs at least one visible character")
    return name


def checked_names(names: Any, what: str) -> tuple[str, ...]:
    """Several names, in order.

    Raises:
        ArgumentError: they are not a sequence of names.
    """
    if isinstance(names, str) or not isinstance(names, Sequence):
        given = f"{names!r}, a {kind_of(names)}"
        raise ArgumentError(f"{what} is {given}; it must be a tuple of strings, such as ('i', 'j')")
    return tuple(checked_name(name, f"a name in {what}") for name in names)


def checked_text(text: Any, what: str) -> str:
    """SQL text.

    Raises:
        InvalidSQL: it is not a string.
    """
    if not isinstance(text, str):
        raise InvalidSQL(f"{what} is a {kind_of(text)}; it must be SQL text, a string")
    return text


def checked_device(device: Any) -> torch.device:
    """The device.

    Raises:
        ArgumentError: it is neither the CPU nor a CUDA device that is there.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise ArgumentError(f"device is {device!r}; use 'cpu', 'cuda' or 'cuda:N'")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ArgumentError(
            f"device is {device!r}; torch finds {torch.cuda.device_count()} CUDA devices here. "
            "Use 'cpu', or install a driver and a CUDA build of torch"
        )
    return found


def checked_budget(budget: Any) -> int | None:
    """Bytes of memory.

    Raises:
        ArgumentError: it is not a whole number above zero.
    """
    if budget is None:
        return None
    whole = _whole(int(budget) if _is_whole_float(budget) else budget)
    if whole is None or whole <= 0:
        raise ArgumentError(
            f"memory_budget is {budget!r}; it must be a whole number of bytes above 0, such as "
            "8 << 30 for 8 GiB, or None"
        )
    return whole


def checked_domain(domain: Any, where: str) -> int | None:
    """The number of values that an integer column may take.

    Raises:
        DomainError: it is not a whole number above zero; ``where`` names the column.
    """
    if domain is None:
        return None
    whole = _whole(domain)
    if whole is None or not 0 < whole < _POSITIONS:
        raise DomainError(
            f"{where}: domain is {domain!r}; it must be a whole number from 1 to 2**63 - 1: the "
            "column then takes the values 0..domain-1"
        )
    return whole


def checked_flag(value: Any, what: str) -> bool:
    """A truth value.

    Raises:
        ArgumentError: it is something else.
    """
    if not isinstance(value, bool | np.bool_):
        raise ArgumentError(f"{what} is {value!r}; use True or False")
    return bool(value)


def checked_mapping(value: Any, what: str, example: str) -> Mapping[Any, Any]:
    """A mapping; None is an empty one.

    Raises:
        ArgumentError: it is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ArgumentError(
            f"{what} is a {kind_of(value)}; it must be a mapping, such as {example}"
        )
    return value


def check_known(names: Iterable[Any], known: Iterable[str], what: str) -> None:
    """An option for something that the table does not have is a mistake, not to be ignored.

    Raises:
        UnknownColumn: naming it, and what there is.
    """
    known = tuple(known)
    for name in names:
        if name not in known:
            raise UnknownColumn(f"{what} {name!r}; there are: {', '.join(known) or 'none'}")


def checked_array(data: Any, where: str) -> Any:
    """Something that has the shape and element type of an array.

    Raises:
        ArgumentError: it has not; the message says how to make one of it.
        DTypeError: a tensor that holds no values, or not one for each position.
    """
    if isinstance(data, torch.Tensor):
        if data.layout is not torch.strided or data.device.type == "meta":
            what = "on the meta device" if data.device.type == "meta" else str(data.layout)
            raise DTypeError(f"{where}: the tensor is {what}; register a dense one with values")
        return data
    if hasattr(data, "columns") and hasattr(data, "to_numpy"):
        raise ArgumentError(
            f"{where}: a {kind_of(data)} is not one array; of a pandas DataFrame register "
            "frame.set_index(dims).to_xarray()"
        )
    if not hasattr(data, "shape") or not hasattr(data, "dtype"):
        raise ArgumentError(
            f"{where}: a {kind_of(data)} is not an array; register a numpy, torch or pandas "
            "array, a DataArray or a Dataset (of lists, np.array(...))"
        )
    return data


def checked_mask(valid: Any, where: str) -> Any:
    """Booleans that say where values are not NULL; None: not given.

    Raises:
        ArgumentError, DTypeError: it is not an array of booleans.
    """
    if valid is None:
        return None
    if isinstance(valid, list | tuple):
        valid = np.asarray(valid)
    if not hasattr(valid, "shape") or not hasattr(valid, "dtype"):
        raise ArgumentError(
            f"{where}: valid= is a {kind_of(valid)}; it must be an array of booleans, False where "
            "the value is NULL"
        )
    if valid.dtype not in (torch.bool, np.dtype(bool)) and str(valid.dtype) != "boolean":
        raise DTypeError(f"{where}: valid= has {valid.dtype} values; it must have booleans")
    return valid


def _is_whole_float(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def _whole(value: SupportsIndex | Any) -> int | None:
    """A whole number as Python's; None for anything else, also for truth values."""
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None

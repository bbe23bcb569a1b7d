"""Query parameters: ``$1``, ``$name`` replaced by literals before planning.

A parameter is a value, never SQL text: strings are quoted and everything else is written
as a literal of its type.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .dates import nanoseconds
from .errors import InvalidSQL

#: Quoted text and comments, which are skipped, or a parameter.
_TOKEN = re.compile(
    r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|--[^\n]*|/\*.*?\*/|(?<!\w)\$(\w+)", re.DOTALL
)

Parameters = Sequence[Any] | Mapping[str, Any]


def bind_parameters(sql: str, parameters: Parameters | None) -> str:
    """The statement with its parameters written as literals.

    Args:
        parameters: a sequence for ``$1, $2, ...`` or a mapping for ``$name``.

    Raises:
        InvalidSQL: a parameter has no value, a value is not used, or it is not a scalar.
    """
    values = _by_name(parameters)
    used: set[str] = set()

    def replaced(match: re.Match[str]) -> str:
        name = match.group(1)
        if name is None:
            return match.group(0)
        if name not in values:
            known = ", ".join(f"${n}" for n in values) or "none"
            raise InvalidSQL(
                f"parameter ${name} at character {match.start()} has no value; given: {known}"
            )
        used.add(name)
        return literal(values[name], f"parameter ${name}")

    bound = _TOKEN.sub(replaced, sql)
    unused = [f"${name}" for name in values if name not in used]
    if unused:
        raise InvalidSQL(f"the query has no parameter {', '.join(unused)}")
    return bound


def parameters_of(sql: str) -> tuple[str, ...]:
    """Names of a statement's parameters, without the ``$``."""
    return tuple(m.group(1) for m in _TOKEN.finditer(sql) if m.group(1) is not None)


def _by_name(parameters: Parameters | None) -> Mapping[str, Any]:
    if parameters is None:
        return {}
    if isinstance(parameters, Mapping):
        return {str(name).removeprefix("$"): value for name, value in parameters.items()}
    if isinstance(parameters, str | bytes) or not isinstance(parameters, Sequence | np.ndarray):
        raise InvalidSQL(
            f"params must be a sequence or a mapping of values, not a {type(parameters).__name__}"
        )
    return {str(i): value for i, value in enumerate(parameters, 1)}


def literal(value: Any, where: str) -> str:
    """A Python or numpy scalar as a SQL literal.

    Raises:
        InvalidSQL: its type has no literal.
        DomainError: a date does not fit nanoseconds.
    """
    if isinstance(value, np.datetime64):
        return "NULL" if np.isnat(value) else f"TIMESTAMP '{nanoseconds(value, where)}'"
    if isinstance(value, np.generic):
        value = value.item()
    match value:
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            if not -(1 << 63) <= value < 1 << 64:
                raise InvalidSQL(f"{where}: {value} is no integer of 64 bits; give it as a float")
            return f"({value})" if value < 0 else str(value)
        case float():
            if not math.isfinite(value):
                return f"CAST('{value}' AS DOUBLE)"
            return f"CAST({value!r} AS DOUBLE)"
        case str():
            return "'" + value.replace("'", "''") + "'"
        case dt.datetime():
            return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
        case dt.date():
            return f"DATE '{value.isoformat()}'"
    raise InvalidSQL(f"{where}: a value of type {type(value).__name__} is not a SQL scalar")

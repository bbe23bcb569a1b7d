"""JSON values as immutable Python values, with one canonical text for each.

A manifest holds values that callers give (data position, schedule, configuration). Freezing them
makes a manifest a snapshot; one canonical text makes equal manifests equal bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from sql_resident.errors import CheckpointError

JsonValue: TypeAlias = (
    "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
)

Document: TypeAlias = "Mapping[str, Any]"
"""A JSON object as the ``json`` module reads it, not yet checked."""


def freeze(value: object, where: str) -> JsonValue:
    """Return an immutable copy of ``value``: lists become tuples, dicts read-only mappings.

    Args:
        value: None, bool, int, finite float, str, or lists, tuples and string-keyed mappings of
            these.
        where: the name of the value in error messages, such as ``"configuration"``.

    Raises:
        CheckpointError: something in ``value`` is not a JSON value; the message gives its place.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise CheckpointError(f"{where} is {value!r}; JSON has finite numbers only")
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        frozen: dict[str, JsonValue] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise CheckpointError(f"{where} has the key {key!r}; JSON keys are strings")
            frozen[str(key)] = freeze(item, f"{where}.{key}")
        return MappingProxyType(frozen)
    if isinstance(value, list | tuple):
        return tuple(freeze(item, f"{where}[{index}]") for index, item in enumerate(value))
    raise CheckpointError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}, not a JSON value; "
        "convert it to int, float, str, list or dict"
    )


def thaw(value: JsonValue) -> JsonValue:
    """Return ``value`` as the plain lists and dicts that the ``json`` module accepts."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [thaw(item) for item in value]
    return value


def canonical_bytes(value: JsonValue) -> bytes:
    """Return the one ASCII text of ``value``: keys sorted, no spaces, floats as ``repr``."""
    text = json.dumps(thaw(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")

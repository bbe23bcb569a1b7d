"""Older format versions, brought up one version at a time by a table of functions.

Version 1: ``__manifest__`` (JSON in uint8) and one member for each array, no digests. Its
manifest has ``format_version``, ``step``, ``seed``, ``data_position``, ``schedule``,
``configuration``, ``sql_hash`` and ``created_with``; only the ZIP's CRC-32 guards the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from sql_resident.checkpoint.json_values import Document

Records: TypeAlias = Callable[[Mapping[str, np.ndarray]], Document]


@dataclass(frozen=True, slots=True)
class RawCheckpoint:
    """The manifest of some format version as JSON, and the arrays of the file."""

    document: Document
    arrays: Mapping[str, np.ndarray]


def _from_1_to_2(raw: RawCheckpoint, records: Records) -> RawCheckpoint:
    document = {
        **raw.document,
        "format_version": 2,
        "counters": {},
        "metrics": {},
        "arrays": records(raw.arrays),
    }
    return RawCheckpoint(document, raw.arrays)


UPGRADES: Mapping[int, Callable[[RawCheckpoint, Records], RawCheckpoint]] = MappingProxyType(
    {1: _from_1_to_2}
)


def upgraded(raw: RawCheckpoint, version: int, *, records: Records) -> RawCheckpoint:
    """Return ``raw`` in format ``version``; ``records`` describes arrays as version 2 does."""
    while raw.document["format_version"] != version:
        raw = UPGRADES[raw.document["format_version"]](raw, records)
    return raw

"""Saving a checkpoint to a path, and loading one that must fit an expected state."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import BinaryIO, TypeVar

import numpy as np

from sql_resident.checkpoint.files import POSIX_FILES, FileOps, checked_path, write_atomically
from sql_resident.checkpoint.format import (
    ArraySpec,
    Checkpoint,
    Manifest,
    encode_checkpoint,
    read_checkpoint,
    read_manifest,
    spec_mismatches,
)
from sql_resident.errors import CheckpointError

_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class ExpectedState:
    """What a checkpoint must hold to be restored here.

    Attributes:
        arrays: shape and dtype of every array, no more and no fewer.
        sql_hash: hash of the step's SQL; None accepts any.
    """

    arrays: Mapping[str, ArraySpec]
    sql_hash: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "arrays", MappingProxyType(dict(self.arrays)))

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray], sql_hash: str | None = None) -> ExpectedState:
        """Return the expectation that a state like ``arrays`` fulfils."""
        return cls({name: ArraySpec.of(array) for name, array in arrays.items()}, sql_hash)

    def mismatches(self, manifest: Manifest) -> tuple[str, ...]:
        """Return every difference from ``manifest``, one line each; empty when it fits."""
        found = {name: record.spec for name, record in manifest.arrays.items()}
        lines = spec_mismatches(found, self.arrays, "file", "expected")
        if self.sql_hash is not None and self.sql_hash != manifest.sql_hash:
            lines.append(
                f"hash of the step's SQL: file {manifest.sql_hash or 'none'}, "
                f"expected {self.sql_hash}"
            )
        return tuple(lines)


def save(
    path: str | os.PathLike[str], checkpoint: Checkpoint, *, files: FileOps = POSIX_FILES
) -> None:
    """Save ``checkpoint`` at ``path`` atomically and durably; an existing file is replaced.

    Returns when the file is on the disk. Whenever the process is killed, ``path`` holds the old
    file or the new one.

    Raises:
        CheckpointError: naming path and cause (such as a full disk); the old file is unchanged.
    """
    write_atomically(path, encode_checkpoint(checkpoint), files)


def load(path: str | os.PathLike[str], expected: ExpectedState | None = None) -> Checkpoint:
    """Load the checkpoint at ``path``, every digest verified. Its arrays are read-only.

    Raises:
        CheckpointError: the file is absent, truncated or damaged (naming the member), or is not
            the expected state (``mismatches`` lists every difference, both sides).
    """
    checkpoint = _read(path, read_checkpoint)
    if expected is not None:
        mismatches = expected.mismatches(checkpoint.manifest)
        if mismatches:
            raise CheckpointError(
                f"{path} is the checkpoint of another model or step:\n  " + "\n  ".join(mismatches),
                path=path,
                mismatches=mismatches,
            )
    return checkpoint


def load_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Return the manifest of the checkpoint at ``path`` without reading its arrays.

    Raises:
        CheckpointError: the file is absent, or its directory or manifest is damaged.
    """
    return _read(path, read_manifest)


def _read(path: str | os.PathLike[str], reader: Callable[[BinaryIO], _Read]) -> _Read:
    try:
        with open(checked_path("load", path), "rb") as file:
            return reader(file)
    except CheckpointError as error:
        raise CheckpointError(
            f"cannot load {path}: {error}",
            path=path,
            member=error.member,
            mismatches=error.mismatches,
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"cannot load {path}: {error.strerror or error}", path=path
        ) from error

"""Checkpoints: one NPZ file without pickle, saved atomically, loaded only when it is whole."""

from sql_resident.checkpoint.files import POSIX_FILES, FileOps, PosixFiles, remove_abandoned
from sql_resident.checkpoint.folder import CheckpointFolder
from sql_resident.checkpoint.format import (
    FORMAT_VERSION,
    ArrayRecord,
    ArraySpec,
    Checkpoint,
    Manifest,
    array_digest,
    installed_versions,
    make_checkpoint,
    sql_hash,
)
from sql_resident.checkpoint.json_values import JsonValue
from sql_resident.checkpoint.store import ExpectedState, load, load_manifest, save

__all__ = [
    "FORMAT_VERSION",
    "POSIX_FILES",
    "ArrayRecord",
    "ArraySpec",
    "Checkpoint",
    "CheckpointFolder",
    "ExpectedState",
    "FileOps",
    "JsonValue",
    "Manifest",
    "PosixFiles",
    "array_digest",
    "installed_versions",
    "load",
    "load_manifest",
    "make_checkpoint",
    "remove_abandoned",
    "save",
    "sql_hash",
]

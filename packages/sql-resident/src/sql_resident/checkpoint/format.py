"""What a checkpoint is, and its bytes: arrays and a manifest in one NPZ file without pickle.

Layout of format version 2, readable by ``numpy.load(path, allow_pickle=False)``:

- ``__manifest__``: uint8, the manifest as canonical JSON (ASCII);
- ``__manifest_sha256__``: 32 uint8, the SHA-256 of those bytes;
- one member for each array, sorted by name.

The manifest records dtype, shape and SHA-256 of every array, so that any change of content is
found even where a ZIP's CRC-32 is not enough. Version 1 had no digests; see ``upgrade.py``.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from importlib import metadata
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np

from sql_resident.arguments import real
from sql_resident.checkpoint.archive import ArchiveReader, byte_view, encode
from sql_resident.checkpoint.json_values import Document, JsonValue, canonical_bytes, freeze, thaw
from sql_resident.checkpoint.upgrade import RawCheckpoint, upgraded
from sql_resident.errors import CheckpointError

FORMAT_VERSION = 2
MANIFEST = "__manifest__"
MANIFEST_DIGEST = "__manifest_sha256__"
SEED_LIMIT = 1 << 64

# Little-endian on every machine, so that a file means the same everywhere.
DTYPES: Mapping[str, str] = MappingProxyType(
    {
        "<f4": "float32",
        "<f8": "float64",
        "<i4": "int32",
        "<i8": "int64",
        "<u4": "uint32",
        "<u8": "uint64",
        "|u1": "uint8",
        "|b1": "bool",
    }
)
_CREATED_WITH = ("sql-resident", "sql-compact", "numpy", "torch")
_NAME_BYTES = 255


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """The shape and dtype name (such as ``"float32"``) of one array."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, array: np.ndarray) -> ArraySpec:
        """Return the spec of ``array``."""
        return cls(tuple(array.shape), array.dtype.name)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class ArrayRecord:
    """What the manifest says of one array: its spec, and the SHA-256 of spec and bytes."""

    spec: ArraySpec
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything in a checkpoint but the numbers; immutable, JSON-serialisable.

    Attributes:
        step: completed updates, >= 0.
        seed: 0 <= seed < 2**64.
        data_position: where the batches stand; any JSON value.
        schedule: the learning-rate schedule as JSON.
        configuration: the session's configuration as JSON.
        sql_hash: hash of the step's SQL (see ``sql_hash``); "" when there is none.
        created_with: version of each package that took part.
        counters: the session's counters.
        metrics: measured values, such as a validation loss; None where it was not finite.
        arrays: a record for each array of the checkpoint.
    """

    step: int
    seed: int
    data_position: JsonValue
    schedule: JsonValue
    configuration: JsonValue
    sql_hash: str
    created_with: Mapping[str, str]
    counters: Mapping[str, int]
    metrics: Mapping[str, float | None]
    arrays: Mapping[str, ArrayRecord]

    def __post_init__(self) -> None:
        _require_int("step", self.step, None)
        _require_int("seed", self.seed, SEED_LIMIT)
        _require_type("sql_hash", self.sql_hash, str)
        for name, allowed in (
            ("created_with", (str,)),
            ("counters", (int,)),
            ("metrics", (float, int, type(None))),
        ):
            values = getattr(self, name)
            _require_type(name, values, Mapping)
            for key, value in values.items():
                if not isinstance(value, allowed) or isinstance(value, bool):
                    raise CheckpointError(f"{name}.{key} is {value!r}, a {type(value).__name__}")
        for field in ("data_position", "schedule", "configuration", "created_with"):
            _set(self, field, freeze(getattr(self, field), field))
        for field in ("counters", "metrics"):
            _set(self, field, freeze(getattr(self, field), field))
        _set(self, "arrays", MappingProxyType(dict(sorted(self.arrays.items()))))

    def to_document(self) -> Document:
        """Return the manifest as the JSON object that the file holds."""
        document: dict[str, JsonValue] = {
            field.name: thaw(getattr(self, field.name))
            for field in fields(self)
            if field.name != "arrays"
        }
        document["format_version"] = FORMAT_VERSION
        document["arrays"] = {
            name: {
                "dtype": record.spec.dtype,
                "shape": list(record.spec.shape),
                "sha256": record.sha256,
            }
            for name, record in self.arrays.items()
        }
        return document

    @classmethod
    def from_document(cls, document: Document) -> Manifest:
        """Return the manifest of a JSON object of the current format version.

        Raises:
            CheckpointError: a field is missing, unknown, or of the wrong type.
        """
        expected = {field.name for field in fields(cls)} | {"format_version"}
        if document.keys() != expected:
            missing, unknown = expected - document.keys(), document.keys() - expected
            raise CheckpointError(
                f"the manifest lacks {sorted(missing)} and has unknown fields {sorted(unknown)}",
                member=MANIFEST,
            )
        values = {key: value for key, value in document.items() if key != "format_version"}
        try:
            values["arrays"] = {
                name: ArrayRecord(
                    ArraySpec(tuple(map(int, record["shape"])), record["dtype"]), record["sha256"]
                )
                for name, record in document["arrays"].items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the manifest's records of arrays are malformed: {error!r}", member=MANIFEST
            ) from error
        return cls(**values)


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """State arrays and their manifest; the arrays are read-only.

    Build one with ``make_checkpoint``, which computes the records. Two checkpoints are equal when
    their manifests and every bit of their arrays are.
    """

    arrays: Mapping[str, np.ndarray]
    manifest: Manifest

    def __post_init__(self) -> None:
        specs = {name: ArraySpec.of(array) for name, array in self.arrays.items()}
        recorded = {name: record.spec for name, record in self.manifest.arrays.items()}
        if specs != recorded:
            lines = spec_mismatches(recorded, specs, "manifest", "arrays")
            raise CheckpointError(
                "the manifest does not describe these arrays: " + "; ".join(lines),
                mismatches=lines,
            )
        frozen = {}
        for name in sorted(self.arrays):
            view = self.arrays[name].view()
            view.flags.writeable = False
            frozen[name] = view
        _set(self, "arrays", MappingProxyType(frozen))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Checkpoint):
            return NotImplemented
        return canonical_bytes(self.manifest.to_document()) == canonical_bytes(
            other.manifest.to_document()
        ) and all(
            byte_view(array) == byte_view(other.arrays[name]) for name, array in self.arrays.items()
        )

    __hash__ = None  # type: ignore[assignment]


def make_checkpoint(
    arrays: Mapping[str, np.ndarray],
    *,
    step: int,
    seed: int,
    data_position: JsonValue = None,
    schedule: JsonValue = None,
    configuration: JsonValue = None,
    sql_hash: str = "",
    counters: Mapping[str, int] | None = None,
    metrics: Mapping[str, float] | None = None,
    created_with: Mapping[str, str] | None = None,
    copy: bool = True,
) -> Checkpoint:
    """Return the checkpoint of a state.

    Args:
        arrays: the state, of the dtypes in ``DTYPES``; any shape, 0-d and empty ones too.
        metrics: floats; one that is not finite is recorded as None.
        created_with: versions; those of the installed packages when None.
        copy: False when the caller hands the arrays over and will never write to them again.
        step, seed, data_position, schedule, configuration, sql_hash, counters: see ``Manifest``.

    Raises:
        CheckpointError: a name or dtype that the format does not hold, or a value that is not
            JSON.
    """
    owned: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        check_name(name)
        if not isinstance(array, np.ndarray) or array.dtype.str not in DTYPES:
            found = getattr(array, "dtype", type(array).__name__)
            raise CheckpointError(
                f"array {name!r} is {found}; a checkpoint holds NumPy arrays of "
                f"{', '.join(DTYPES.values())} (little-endian)",
                member=name,
            )
        owned[name] = np.array(array, order="C", copy=True if copy else None)
    manifest = Manifest(
        step=step,
        seed=seed,
        data_position=data_position,
        schedule=schedule,
        configuration=configuration,
        sql_hash=sql_hash,
        created_with=installed_versions() if created_with is None else created_with,
        counters=counters or {},
        metrics={name: _metric(name, value) for name, value in (metrics or {}).items()},
        arrays=records_of(owned),
    )
    return Checkpoint(owned, manifest)


def _metric(name: str, value: Any) -> float | None:
    found = real(value.item() if getattr(value, "ndim", None) == 0 else value)
    if found is None:
        raise CheckpointError(f"metric {name!r} is {value!r}; it must be a number")
    return found if math.isfinite(found) else None


def records_of(arrays: Mapping[str, np.ndarray]) -> dict[str, ArrayRecord]:
    """Return the record (dtype, shape, SHA-256) of every array."""
    return {name: ArrayRecord(ArraySpec.of(a), array_digest(a)) for name, a in arrays.items()}


def array_digest(array: np.ndarray) -> str:
    """Return the SHA-256, in hex, of ``dtype[shape]`` followed by the bytes in C order."""
    digest = hashlib.sha256(f"{ArraySpec.of(array)}\0".encode("ascii"))
    digest.update(byte_view(array))
    return digest.hexdigest()


def sql_hash(text: str) -> str:
    """Return the SHA-256, in hex, of a SQL text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that make and read a state."""
    versions = {"python": platform.python_version()}
    for package in _CREATED_WITH:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def check_name(name: str) -> None:
    """Raise ``CheckpointError`` unless ``name`` can be that of an array in a checkpoint."""
    reason = None
    if not isinstance(name, str) or not name:
        reason = "a name is a non-empty string"
    elif not name.isprintable() or "/" in name or "\\" in name:
        reason = "it has a slash, a backslash or a character that does not print"
    elif name.startswith("__"):
        reason = "names that start with two underscores are the format's own"
    elif name.endswith(".npy"):
        reason = "numpy.load could not tell it from the name without .npy"
    elif len(name.encode()) > _NAME_BYTES:
        reason = f"it is longer than {_NAME_BYTES} bytes"
    if reason is not None:
        raise CheckpointError(f"array name {name!r}: {reason}")


def spec_mismatches(
    found: Mapping[str, ArraySpec],
    expected: Mapping[str, ArraySpec],
    found_in: str,
    expected_in: str,
) -> list[str]:
    """Return one line for every array that the two sides do not agree on."""
    lines = []
    for name in sorted(found.keys() | expected.keys()):
        left, right = found.get(name), expected.get(name)
        if left != right:
            lines.append(f"{name}: {found_in} {left or 'none'}, {expected_in} {right or 'none'}")
    return lines


def encode_checkpoint(checkpoint: Checkpoint) -> Iterator[bytes | memoryview]:
    """Yield the bytes of the file of ``checkpoint``; equal checkpoints give equal bytes."""
    document = canonical_bytes(checkpoint.manifest.to_document())
    digest = hashlib.sha256(document).digest()
    yield from encode(
        {
            MANIFEST: np.frombuffer(document, np.uint8),
            MANIFEST_DIGEST: np.frombuffer(digest, np.uint8),
            **checkpoint.arrays,
        }
    )


def read_checkpoint(file: BinaryIO) -> Checkpoint:
    """Read a checkpoint of this or an older format version, and verify every digest.

    Raises:
        CheckpointError: the file is truncated, damaged, from a newer version, or no checkpoint.
    """
    reader = ArchiveReader(file)
    document = _read_document(reader)
    names = [name for name in reader.names if name not in (MANIFEST, MANIFEST_DIGEST)]
    arrays = {}
    for name in names:
        arrays[name] = reader.read(name)
        if arrays[name].dtype.str not in DTYPES:
            raise CheckpointError(
                f"member {name!r} has dtype {arrays[name].dtype}, which checkpoints do not hold",
                member=name,
            )
    if document["format_version"] == FORMAT_VERSION:
        manifest = Manifest.from_document(document)
        _verify(arrays, manifest)
    else:
        raw = upgraded(RawCheckpoint(document, arrays), FORMAT_VERSION, records=_document_records)
        arrays, manifest = dict(raw.arrays), Manifest.from_document(raw.document)
    return Checkpoint(arrays, manifest)


def read_manifest(file: BinaryIO) -> Manifest:
    """Read and verify the manifest alone (of an older version: by reading the whole file).

    Raises:
        CheckpointError: as ``read_checkpoint``.
    """
    reader = ArchiveReader(file)
    document = _read_document(reader)
    if document["format_version"] != FORMAT_VERSION:
        return read_checkpoint(file).manifest
    return Manifest.from_document(document)


def _read_document(reader: ArchiveReader) -> Document:
    if MANIFEST not in reader.names:
        raise CheckpointError(
            f"there is no member {MANIFEST!r}: this NPZ file is not a checkpoint", member=MANIFEST
        )
    data = bytes(byte_view(reader.read(MANIFEST)))
    has_digest = MANIFEST_DIGEST in reader.names
    if has_digest:
        stored = bytes(byte_view(reader.read(MANIFEST_DIGEST)))
        if stored != hashlib.sha256(data).digest():
            raise CheckpointError(
                f"member {MANIFEST!r} does not have the digest in {MANIFEST_DIGEST!r}: one of "
                "them is damaged",
                member=MANIFEST,
            )
    try:
        document = json.loads(data)
        version = document["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"member {MANIFEST!r} is not a manifest: {error!r}", member=MANIFEST
        ) from error
    if not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION:
        raise CheckpointError(
            f"the file has format version {version!r}; this release reads 1 to {FORMAT_VERSION}. "
            "Load it with the release that wrote it, or a newer one",
            member=MANIFEST,
        )
    if version >= 2 and not has_digest:
        raise CheckpointError(f"member {MANIFEST_DIGEST!r} is missing", member=MANIFEST_DIGEST)
    return document


def _verify(arrays: Mapping[str, np.ndarray], manifest: Manifest) -> None:
    for name in sorted(arrays.keys() | manifest.arrays.keys()):
        record, array = manifest.arrays.get(name), arrays.get(name)
        if array is None:
            problem = "is in the manifest but not in the file"
        elif record is None:
            problem = "is in the file but not in the manifest"
        elif ArraySpec.of(array) != record.spec:
            problem = f"is {ArraySpec.of(array)}, but the manifest says {record.spec}"
        elif array_digest(array) != record.sha256:
            problem = "does not have the digest in the manifest: its content was changed"
        else:
            continue
        raise CheckpointError(f"member {name!r} {problem}", member=name)


def _document_records(arrays: Mapping[str, np.ndarray]) -> Document:
    return {
        name: {
            "dtype": record.spec.dtype,
            "shape": list(record.spec.shape),
            "sha256": record.sha256,
        }
        for name, record in records_of(arrays).items()
    }


def _set(instance: object, name: str, value: object) -> None:
    object.__setattr__(instance, name, value)


def _require_type(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise CheckpointError(f"{name} is {value!r}, not a {kind.__name__}")


def _require_int(name: str, value: object, limit: int | None) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CheckpointError(f"{name} is {value!r}, not a non-negative int")
    if limit is not None and value >= limit:
        raise CheckpointError(f"{name} is {value}, not below {limit}")

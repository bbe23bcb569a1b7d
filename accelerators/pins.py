"""The manifest of pins, read into typed values."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SHA256 = re.compile(r"[0-9a-f]{64}")


class AcceleratorError(Exception):
    """What went wrong and what to do, in one message for the command line."""


class ManifestError(AcceleratorError):
    """The manifest cannot be read, or an entry is incomplete."""


class UnknownAccelerator(AcceleratorError):
    """The manifest has no entry of this name."""


@dataclass(frozen=True, slots=True)
class PackagePin:
    """A released package: `sha256` maps each file of the release that may be used to its digest."""

    name: str
    purpose: str
    licence: str
    repository: str
    commit: str
    package: str
    version: str
    build_backend: str
    build_tools: tuple[str, ...]
    smoke: Path
    smoke_requires: tuple[str, ...]
    sha256: dict[str, str]

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    def files(self, *, source: bool) -> dict[str, str]:
        """The pinned source distribution, or the pinned wheels."""
        return {
            file: digest
            for file, digest in self.sha256.items()
            if file.endswith(".whl") is not source
        }


@dataclass(frozen=True, slots=True)
class DesignPin:
    """A design that is followed, without a release to install."""

    name: str
    purpose: str
    licence: str
    repository: str
    commit: str
    statement: str
    instead: tuple[str, ...]


def load(manifest: Path, name: str) -> PackagePin | DesignPin:
    """Read the entry `name`.

    Raises ManifestError for an unreadable manifest or an incomplete entry, UnknownAccelerator for
    a name without an entry.
    """
    try:
        entries = tomllib.loads(manifest.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ManifestError(f"cannot read the pins in {manifest}: {error}") from error
    if name not in entries:
        known = ", ".join(sorted(entries))
        meant = [n for n, e in entries.items() if isinstance(e, dict) and e.get("package") == name]
        hint = f"; {name} is the package of {meant[0]}" if meant else ""
        raise UnknownAccelerator(f"no accelerator is named {name!r}; there are: {known}{hint}")
    entry = entries[name]
    try:
        common = {key: _text(entry[key]) for key in ("purpose", "licence", "repository", "commit")}
        if entry["kind"] == "design":
            return DesignPin(
                name=name,
                **common,
                statement=_text(entry["statement"]),
                instead=_texts(entry["instead"]),
            )
        if entry["kind"] != "package":
            raise ManifestError(f"{name}: kind must be 'package' or 'design'")
        return PackagePin(
            name=name,
            **common,
            package=_text(entry["package"]),
            version=_text(entry["version"]),
            build_backend=_text(entry["build_backend"]),
            build_tools=_texts(entry["build_tools"]),
            smoke=manifest.parent / _text(entry["smoke"]),
            smoke_requires=_texts(entry["smoke_requires"]),
            sha256=_digests(entry["sha256"]),
        )
    except KeyError as error:
        raise ManifestError(f"{name}: the entry in {manifest} lacks {error}") from error
    except TypeError as error:
        raise ManifestError(f"{name}: {error}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a string, found {value!r}")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list of strings, found {value!r}")
    return tuple(_text(item) for item in value)


def _digests(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise TypeError(f"expected a table of files and digests, found {value!r}")
    for file, digest in value.items():
        if not _SHA256.fullmatch(_text(digest)):
            raise TypeError(f"the sha256 of {file} is not 64 lower-case hexadecimal digits")
    return value

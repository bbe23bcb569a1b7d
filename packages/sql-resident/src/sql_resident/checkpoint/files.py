"""Atomic replacement of a file on a POSIX file system.

A reader of the path sees the old content or the new one, never a mixture, whenever the writer is
killed and whatever fails: the content goes to a temporary file of the same folder, is flushed to
the disk, and takes the name by one ``rename``; then the folder is flushed, so that the rename
survives a power loss.

A writer holds a lock on its temporary file, which the kernel releases when the process dies. So a
temporary file that can be locked was left by a killed writer, whatever process ids say, and the
next save in the folder removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Protocol

from sql_resident.errors import CheckpointError

PARTIAL_SUFFIX = ".sql-resident-partial"
_CREATE_ATTEMPTS = 8


class FileOps(Protocol):
    """The operations that change the file system during a save, in one replaceable place."""

    def create(self, path: Path) -> BinaryIO:
        """Create a file that must not exist, locked, for unbuffered writing."""
        ...

    def write(self, file: BinaryIO, data: bytes | memoryview) -> None:
        """Write all of ``data``."""
        ...

    def sync(self, file: BinaryIO) -> None:
        """Wait until the content of ``file`` is on the disk."""
        ...

    def replace(self, source: Path, target: Path) -> None:
        """Give ``source`` the name ``target``, atomically; what had that name is gone."""
        ...

    def sync_folder(self, folder: Path) -> None:
        """Wait until the names in ``folder`` are on the disk."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file."""
        ...


class PosixFiles:
    """``FileOps`` of the operating system."""

    def create(self, path: Path) -> BinaryIO:
        """Create and lock ``path``.

        Raises:
            OSError: the file exists or cannot be created.
            FileExistsError: another save took the new file for an abandoned one.
        """
        file = open(path, "xb", buffering=0)  # noqa: SIM115 - the caller closes it
        # A file system without locks loses only the removal of abandoned files.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink == 0:
            file.close()
            raise FileExistsError(f"{path} was removed before it could be locked")
        return file

    def write(self, file: BinaryIO, data: bytes | memoryview) -> None:
        """Write all of ``data``, which one system call may do only in part."""
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]

    def sync(self, file: BinaryIO) -> None:
        """Call ``fsync`` on the file."""
        os.fsync(file.fileno())

    def replace(self, source: Path, target: Path) -> None:
        """Call ``rename``."""
        os.replace(source, target)

    def sync_folder(self, folder: Path) -> None:
        """Call ``fsync`` on the folder."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, path: Path) -> None:
        """Call ``unlink``."""
        os.unlink(path)


POSIX_FILES = PosixFiles()


def checked_path(action: str, path: object) -> str:
    """The path as text.

    Raises:
        CheckpointError: it is no path.
    """
    if not isinstance(path, str | bytes | os.PathLike):
        # An open file's number would be taken for a path by open().
        hint = " (a folder without checkpoints has no latest or best one)" if path is None else ""
        raise CheckpointError(
            f"cannot {action} {path!r}: a path is a string or a pathlib.Path, not "
            f"{type(path).__name__}{hint}"
        )
    text = os.fsdecode(path)
    if "\0" in text:
        raise CheckpointError(f"cannot {action} {text!r}: a path has no null character")
    return text


def write_atomically(
    path: str | os.PathLike[str],
    chunks: Iterable[bytes | memoryview],
    files: FileOps = POSIX_FILES,
) -> None:
    """Make ``chunks`` the content of ``path``, or leave what was there and raise.

    A symbolic link is followed: the file that it names is replaced.

    Raises:
        CheckpointError: with the path and the cause. The old file is unchanged, except when
            flushing the folder fails: then the new one is complete and in place, but a power
            loss may bring the old one back.
    """
    target = Path(os.path.realpath(checked_path("save", path)))
    # os.path, other than Path, takes a name that is too long for one that is not there.
    if os.path.isdir(target):
        raise CheckpointError(f"cannot save {path}: it is a folder", path=path)
    if os.path.exists(target) and not os.path.isfile(target):
        raise CheckpointError(
            f"cannot save {path}: it is a device, a pipe or a socket, which a save would replace "
            "by a file",
            path=path,
        )
    if not os.path.isdir(target.parent):
        raise CheckpointError(
            f"cannot save {path}: the folder {target.parent} does not exist", path=path
        )
    with contextlib.suppress(OSError):
        remove_abandoned(target.parent, files)
    try:
        _write_and_rename(target, chunks, files)
    except Exception as error:
        raise CheckpointError(
            f"cannot save {path}: {_cause(error)}. "
            "The temporary file is removed; a file that had this name before is unchanged",
            path=path,
        ) from error
    try:
        files.sync_folder(target.parent)
    except Exception as error:
        raise CheckpointError(
            f"{path} is saved and complete, but flushing its folder failed: {_cause(error)}. "
            "A power loss now may bring the previous file back; save again",
            path=path,
        ) from error


def _write_and_rename(target: Path, chunks: Iterable[bytes | memoryview], files: FileOps) -> None:
    temporary, file = _create_partial(target.parent, files)
    # Open, hence locked, until the rename: or another save could take it for abandoned.
    with file:
        try:
            for chunk in chunks:
                files.write(file, chunk)
            files.sync(file)
            files.replace(temporary, target)
        except BaseException:
            # Including an interrupt. If removing fails too, the next save removes the file.
            with contextlib.suppress(OSError):
                files.remove(temporary)
            raise


def _create_partial(folder: Path, files: FileOps) -> tuple[Path, BinaryIO]:
    for attempt in range(_CREATE_ATTEMPTS):
        path = folder / f".{secrets.token_hex(8)}{PARTIAL_SUFFIX}"
        try:
            return path, files.create(path)
        except FileExistsError:
            if attempt == _CREATE_ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")


def remove_abandoned(folder: Path, files: FileOps = POSIX_FILES) -> tuple[Path, ...]:
    """Remove the temporary files that killed writers left in ``folder``; return their paths."""
    removed = []
    for path in sorted(folder.glob(f".*{PARTIAL_SUFFIX}")):
        # Vanished, locked by a live writer, or not ours to remove.
        with contextlib.suppress(OSError), open(path, "rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            files.remove(path)
            removed.append(path)
    return tuple(removed)


def _cause(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__

"""Saves a checkpoint once for every stage of a save, each in a child that kills itself there.

For every file operation of a save, a child process is killed with SIGKILL before it, after it, and
for a write also in the middle. Each child saves NEW as FOLDER/<number>/state.npz, over a copy of
OLD if there is one. Forked from the test's own process, so that no child imports anything.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from sql_resident.checkpoint import Checkpoint, PosixFiles, load, save


class StoppingFiles(PosixFiles):
    """Kills its own process at operation number ``stop``; with None, only lists operations."""

    def __init__(self, stop: int | None, when: str = "") -> None:
        self.stop = stop
        self.when = when
        self.operations: list[str] = []

    def _run(self, name: str, action: Callable[[], object], half: Callable[[], object]) -> object:
        here = len(self.operations) == self.stop
        self.operations.append(name)
        if here and self.when == "before":
            _kill_self()
        if here and self.when == "middle":
            half()
            _kill_self()
        result = action()
        if here:
            _kill_self()
        return result

    def create(self, path: Path) -> BinaryIO:
        return self._run("create", lambda: super(StoppingFiles, self).create(path), _nothing)

    def write(self, file: BinaryIO, data: bytes | memoryview) -> None:
        write = super().write
        self._run(
            "write",
            lambda: write(file, data),
            lambda: write(file, memoryview(data)[: len(data) // 2]),
        )

    def sync(self, file: BinaryIO) -> None:
        self._run("sync", lambda: super(StoppingFiles, self).sync(file), _nothing)

    def replace(self, source: Path, target: Path) -> None:
        self._run("replace", lambda: super(StoppingFiles, self).replace(source, target), _nothing)

    def sync_folder(self, folder: Path) -> None:
        self._run("sync_folder", lambda: super(StoppingFiles, self).sync_folder(folder), _nothing)


def _nothing() -> None:
    pass


def _kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _save_and_die(
    checkpoint: Checkpoint, folder: Path, old: Path | None, stop: int, when: str
) -> None:
    folder.mkdir()
    if old is not None:
        shutil.copy(old, folder / "state.npz")
    child = os.fork()
    if child == 0:
        try:
            save(folder / "state.npz", checkpoint, files=StoppingFiles(stop, when))
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
        raise SystemExit(f"the child for operation {stop} ({when}) was not killed: {status}")


def main(new: Path, folder: Path, old: Path | None) -> list[tuple[str, str, str]]:
    """Run every stage; return (folder, operation, when) of each."""
    checkpoint = load(new)
    listing = StoppingFiles(None)
    save(folder / "complete.npz", checkpoint, files=listing)
    stages: list[tuple[str, str, str]] = []
    for number, operation in enumerate(listing.operations):
        for when in ("before", "middle", "after") if operation == "write" else ("before", "after"):
            place = folder / str(len(stages))
            _save_and_die(checkpoint, place, old, number, when)
            stages.append((str(place), operation, when))
    return stages

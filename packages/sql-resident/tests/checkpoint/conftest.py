"""Two small states of one model, and file operations that tests can watch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from sql_resident.checkpoint import Checkpoint, PosixFiles, make_checkpoint


def make_state(step: int) -> Checkpoint:
    values = np.random.default_rng(step)
    weight = values.normal(size=(3, 4)).astype(np.float32)
    weight[0, 0] = np.nan
    return make_checkpoint(
        {
            "wte": weight,
            "wte.m": values.normal(size=(3, 4)),
            "count": np.array(step),
            "empty": np.empty((0, 3), np.float32),
        },
        step=step,
        seed=1337,
        data_position={"epoch": 1, "offset": step},
        schedule={"kind": "constant", "lr": 0.001},
        configuration={"layers": [1, 2], "name": "tiny"},
        sql_hash="abc",
        counters={"steps": step},
        metrics={"val_loss": 1.0 / (1 + step)},
        created_with={"sql-resident": "0.1.0"},
    )


class WatchedFiles(PosixFiles):
    """Calls ``watch(operation)`` before each operation, and lists the operations."""

    def __init__(self, watch: Callable[[str], None] = lambda operation: None) -> None:
        self.watch = watch
        self.operations: list[str] = []

    def _note(self, operation: str) -> None:
        self.operations.append(operation)
        self.watch(operation)

    def create(self, path: Path) -> BinaryIO:
        self._note("create")
        return super().create(path)

    def write(self, file: BinaryIO, data: bytes | memoryview) -> None:
        self._note("write")
        super().write(file, data)

    def sync(self, file: BinaryIO) -> None:
        self._note("sync")
        super().sync(file)

    def replace(self, source: Path, target: Path) -> None:
        self._note("replace")
        super().replace(source, target)

    def sync_folder(self, folder: Path) -> None:
        self._note("sync_folder")
        super().sync_folder(folder)

    def remove(self, path: Path) -> None:
        self._note("remove")
        super().remove(path)


@pytest.fixture
def state() -> Callable[[int], Checkpoint]:
    """The function from a step to a state of the model at that step."""
    return make_state


@pytest.fixture
def watched() -> type[WatchedFiles]:
    """The class of file operations that can be watched."""
    return WatchedFiles

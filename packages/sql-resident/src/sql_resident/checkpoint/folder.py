"""A folder of step-numbered checkpoints: the newest few and the best one."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from sql_resident.checkpoint.files import POSIX_FILES, FileOps, checked_path
from sql_resident.checkpoint.format import Checkpoint, Manifest
from sql_resident.checkpoint.store import load_manifest, save
from sql_resident.errors import CheckpointError

_FILE = re.compile(r"step-(\d{12,})\.npz")
Mode = Literal["min", "max"]


class CheckpointFolder:
    """Saves checkpoints as ``step-000000001234.npz``, and removes those no longer needed.

    A save first completes the new file, then prunes; so a process killed at any moment leaves at
    most a file too many, which the next save removes. Pruning keeps the ``keep_last`` files of
    the highest steps, the best file, and the file just saved. A file whose manifest cannot be
    read is never removed and never counted.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        keep_last: int = 3,
        best: str | None = None,
        *,
        mode: Mode = "min",
        files: FileOps = POSIX_FILES,
    ) -> None:
        """Use the folder ``path``, made at the first save.

        Args:
            keep_last: how many of the newest files to keep, at least 1.
            best: name of the metric of ``Manifest.metrics`` by which the best file is kept.
            mode: ``"min"`` if a lower metric is better, else ``"max"``.
            files: the file system's operations.

        Raises:
            CheckpointError: an argument is invalid.
        """
        if not isinstance(keep_last, int) or isinstance(keep_last, bool) or keep_last < 1:
            raise CheckpointError(f"keep_last is {keep_last!r}, not an int of at least 1")
        if mode not in ("min", "max"):
            raise CheckpointError(f"mode is {mode!r}, not 'min' or 'max'")
        if best is not None and not isinstance(best, str):
            raise CheckpointError(f"best is {best!r}, not the name of a metric")
        self.path = Path(checked_path("use", path))
        self.keep_last = keep_last
        self.metric = best
        self.mode: Mode = mode
        self._files = files

    def file_of(self, step: int) -> Path:
        """Return the path for the checkpoint of ``step``, whether it exists or not."""
        return self.path / f"step-{step:012d}.npz"

    def steps(self) -> tuple[int, ...]:
        """Return the steps that have a file, ascending."""
        if not self.path.is_dir():
            return ()
        found = (_FILE.fullmatch(entry.name) for entry in self.path.iterdir())
        return tuple(sorted(int(match[1]) for match in found if match))

    def latest(self) -> Path | None:
        """Return the file of the highest step, or None in an empty folder."""
        steps = self.steps()
        return self.file_of(steps[-1]) if steps else None

    def best(self) -> Path | None:
        """Return the file with the best metric (of equal ones the newest), or None.

        Files without a finite value of the metric, or with an unreadable manifest, are passed
        over.

        Raises:
            CheckpointError: the folder was made without a metric.
        """
        if self.metric is None:
            raise CheckpointError(
                f"CheckpointFolder({str(self.path)!r}) has no metric; give best='val_loss'"
            )
        step = self._best_step(self._manifests())
        return None if step is None else self.file_of(step)

    def save(self, checkpoint: Checkpoint) -> Path:
        """Save ``checkpoint`` as the file of its step, then prune; return the file's path.

        Raises:
            CheckpointError: saving failed (older files are unchanged), or the new file is
                complete but an old one could not be removed.
        """
        if not isinstance(checkpoint, Checkpoint):
            raise CheckpointError(
                f"cannot save a {type(checkpoint).__name__} in {self.path}; "
                "give session.checkpoint()"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"cannot make the folder {self.path}: {error.strerror}", path=self.path
            ) from error
        step = checkpoint.manifest.step
        path = self.file_of(step)
        save(path, checkpoint, files=self._files)
        self._prune(step)
        return path

    def _manifests(self) -> dict[int, Manifest]:
        manifests = {}
        for step in self.steps():
            try:
                manifests[step] = load_manifest(self.file_of(step))
            except CheckpointError:
                # Damaged: of no use here, but evidence that is not ours to remove.
                continue
        return manifests

    def _best_step(self, manifests: dict[int, Manifest]) -> int | None:
        if self.metric is None:
            return None
        sign = 1 if self.mode == "min" else -1
        scored = [
            (sign * value, -step)
            for step, manifest in manifests.items()
            if (value := manifest.metrics.get(self.metric)) is not None
        ]
        return -min(scored)[1] if scored else None

    def _prune(self, just_saved: int) -> None:
        manifests = self._manifests()
        keep = {just_saved, *sorted(manifests)[-self.keep_last :]}
        best = self._best_step(manifests)
        if best is not None:
            keep.add(best)
        for step in sorted(manifests.keys() - keep):
            path = self.file_of(step)
            try:
                self._files.remove(path)
            except FileNotFoundError:
                continue  # another process pruned it
            except OSError as error:
                raise CheckpointError(
                    f"{self.file_of(just_saved)} is saved, but the old {path} cannot be removed: "
                    f"{error.strerror}",
                    path=path,
                ) from error

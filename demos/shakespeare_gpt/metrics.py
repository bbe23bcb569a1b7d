"""The record of a run: one JSON object a line, kept on disk as the run goes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from .errors import DemoError

__all__ = ["Metrics", "open_metrics"]


@dataclass(slots=True)
class Metrics:
    """Records of updates (``step``, ``loss``, ``grad_norm``, ``learning_rate``, ``seconds``) and of
    evaluations (``step``, ``training_loss``, ``validation_loss``, ``seconds``)."""

    stream: TextIO
    updates: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)

    def update(self, **values: Any) -> None:
        """Record one update."""
        self.updates.append(values)
        self._write({"event": "update", **values})

    def evaluation(self, **values: Any) -> None:
        """Record one evaluation."""
        self.evaluations.append(values)
        self._write({"event": "evaluation", **values})

    def _write(self, record: dict[str, Any]) -> None:
        self.stream.write(json.dumps(record) + "\n")
        self.stream.flush()


@contextmanager
def open_metrics(path: Path, *, first_step: int) -> Iterator[Metrics]:
    """Metrics written to ``path``. A resumed run (``first_step > 0``) keeps the earlier records of
    the updates before it; a new one starts an empty file. Raises DemoError if that fails."""
    try:
        earlier = _read(path) if first_step and path.exists() else []
        with path.open("w", encoding="utf-8") as stream:
            metrics = Metrics(stream)
            for record in earlier:
                if record["step"] <= first_step:
                    event = record.pop("event")
                    (metrics.update if event == "update" else metrics.evaluation)(**record)
            yield metrics
    except OSError as error:
        raise DemoError(f"cannot write {path}: {error.strerror or error}") from error


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except ValueError as error:
        raise DemoError(f"{path} is not a metrics file: {error}; remove it") from error
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict) or not {"event", "step"} <= record.keys():
            raise DemoError(f"{path} is not a metrics file: line {number} is no record; remove it")
    return records

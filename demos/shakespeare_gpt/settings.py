"""Everything that one run of the demo can be told."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from sql_resident.gpt import GPTConfig

from .errors import ConfigError

__all__ = ["Settings", "default_device", "default_precision"]


def default_device() -> str:
    """``cuda`` where there is a CUDA device, else ``cpu``."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def default_precision(device: str) -> str:
    """``tf32`` on CUDA, else ``float32``."""
    return "tf32" if device.startswith("cuda") else "float32"


@dataclass(frozen=True, slots=True)
class Settings:
    """One run.

    Parameters
    ----------
    model:
        Sizes of the model.
    batch:
        Sequences in a batch.
    steps:
        Updates to have made at the end, those before a checkpoint included.
    seed:
        Seed of initial weights, batches, dropout and the sample, at least 0.
    data, data_sha256:
        Text file, and its expected hash; without a file see :func:`.data.find_text`.
    device, precision, compile:
        As in ``sql_resident.TrainingSession``.
    output:
        Folder of ``metrics.jsonl``, ``loss.png`` and ``sample.txt``.
    eval_interval, eval_batches, eval_at_start:
        Updates between evaluations, batches of each split in one, and whether to evaluate before
        the first update too.
    sample_length, sample_seconds:
        Characters in the sample at the end, and the time after which it is cut short.
    checkpoint, resume:
        Where to write the session's state, and a state to continue from.
    max_seconds:
        Time after which no further update is started.

    Raises
    ------
    ConfigError
        If a value is outside its range.
    """

    model: GPTConfig = field(default_factory=GPTConfig)
    batch: int = 12
    steps: int = 5000
    seed: int = 1337
    data: Path | None = None
    data_sha256: str | None = None
    device: str = field(default_factory=default_device)
    precision: str = ""
    compile: bool | None = None
    output: Path = Path("runs/shakespeare")
    eval_interval: int = 250
    eval_batches: int = 200
    eval_at_start: bool = False
    sample_length: int = 200
    sample_seconds: float = 20.0
    checkpoint: Path | None = None
    resume: Path | None = None
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        if not self.precision:
            object.__setattr__(self, "precision", default_precision(self.device))
        least = {
            "batch": 1,
            "steps": 0,
            "seed": 0,
            "eval_interval": 1,
            "eval_batches": 1,
            "sample_length": 0,
            "sample_seconds": 0,
            "max_seconds": 0,
        }
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and not value >= bound:
                flag = "--max-time" if name == "max_seconds" else "--" + name.replace("_", "-")
                raise ConfigError(f"{flag} must be at least {bound}, not {value!r}")
        if self.data_sha256 is not None and self.data is None:
            raise ConfigError("--data-sha256 checks the file given with --data; give both")

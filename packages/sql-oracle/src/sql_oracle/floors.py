"""Recorded noise floors: PyTorch against itself, see :mod:`sql_oracle.noise`."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from sql_oracle.precision import PrecisionName, precision_policy
from sql_oracle.reference import GPTConfig

#: What is compared. A moment is any slot of the optimizer.
QUANTITIES = ("loss", "gradient", "grad_norm", "weight", "moment")


@dataclass(frozen=True, slots=True)
class Floor:
    """Noise of one quantity: norm and entry errors as in :class:`sql_oracle.compare.Difference`."""

    norm: float
    entry: float


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """A measurement of every quantity's noise.

    Attributes:
        precision: the policy.
        config: sizes of the model.
        batch_size: sequences in a batch.
        steps: updates in the run.
        device: as torch names it; ``(emulated)`` where TF32 products were emulated in float32.
        floors: by quantity, the larger of the two variants over all tensors and steps.
    """

    precision: PrecisionName
    config: GPTConfig
    batch_size: int
    steps: int
    device: str
    floors: Mapping[str, Floor]

    @property
    def learning_rate(self) -> float:
        """The largest learning rate of the run, whose warm-up takes 100 updates to 1e-3."""
        return 1e-3 * min(self.steps, 101) / 101


def _read() -> tuple[NoiseFloor, ...]:
    text = files("sql_oracle").joinpath("floors.csv").read_text(encoding="utf-8")
    return tuple(_row(fields) for fields in csv.DictReader(text.splitlines()))


def _row(fields: Mapping[str, str]) -> NoiseFloor:
    sizes = {name: int(fields[name]) for name in ("layers", "heads", "width", "context")}
    floors = {
        quantity: Floor(float(fields[f"{quantity} norm"]), float(fields[f"{quantity} entry"]))
        for quantity in QUANTITIES
    }
    return NoiseFloor(
        precision_policy(fields["precision"]).name,
        GPTConfig(**sizes),
        int(fields["batch"]),
        int(fields["steps"]),
        fields["device"],
        floors,
    )


#: Recorded by ``sql-oracle noise``; each row the largest of its seeds.
MEASURED: tuple[NoiseFloor, ...] = _read()

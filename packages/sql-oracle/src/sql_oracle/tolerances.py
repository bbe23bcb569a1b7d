"""How far two correct computations may differ, by precision, and why.

Every tolerance is ``FACTOR`` times a measured noise floor: PyTorch against itself, as the oracle
runs it and in another order or a wider precision, with the recipe's optimizer, schedule and dropout
(:mod:`sql_oracle.noise`, command ``sql-oracle noise``). Noise grows with the size of the model and
the number of updates, so floors are recorded for several of each; a check uses the floor of the
smallest recorded size and length that are not below its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sql_oracle.errors import OracleError
from sql_oracle.precision import PrecisionName, precision_policy
from sql_oracle.reference import GPTConfig

#: What is compared. A moment is any slot of the optimizer.
QUANTITIES = ("loss", "gradient", "grad_norm", "weight", "moment")

#: Tolerance over noise floor. A check looser than ten times its floor would prove little.
FACTOR = 8.0


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


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest allowed errors.

    Attributes:
        precision: the policy they hold for.
        limits: by quantity, the largest allowed norm and entry errors.
        floor: the measurement that justifies them; None for limits of the caller's own.
    """

    precision: PrecisionName
    limits: Mapping[str, Floor]
    floor: NoiseFloor | None = None

    @classmethod
    def uniform(cls, precision: str, limit: float) -> "Tolerance":
        """The same limit for the norm error of every quantity, and none for single entries."""
        return cls(
            precision_policy(precision).name,
            dict.fromkeys(QUANTITIES, Floor(limit, float("inf"))),
        )


def tolerance_for(precision: str, *, parameters: int, steps: int, device: str) -> Tolerance:
    """The tolerance for a model with ``parameters`` weights checked over ``steps`` updates.

    Args:
        precision: name of the policy. ``tf32`` on a CPU is float32, and is judged as such.
        parameters: number of weights of the model.
        steps: updates that the two sides make independently of each other.
        device: a floor measured on the same kind of device is preferred.

    Raises:
        OracleError: unknown precision, or more steps than floors are measured for.
    """
    name = precision_policy(precision).name
    kind = device.partition(":")[0]
    if name == "tf32" and kind == "cpu":
        name = "float32"
    rows = [row for row in MEASURED if row.precision == name and row.steps >= steps]
    if not rows:
        longest = max(row.steps for row in MEASURED)
        raise OracleError(
            f"noise is measured for runs of up to {longest} updates, not {steps}; check in "
            "follow mode, where every update is judged by itself, or pass a tolerance"
        )
    same_kind = [row for row in rows if row.device.partition(" ")[0].partition(":")[0] == kind]
    rows = same_kind or rows
    length = min(row.steps for row in rows)
    rows = sorted(
        (row for row in rows if row.steps == length), key=lambda row: row.config.parameters
    )
    row = next((row for row in rows if row.config.parameters >= parameters), rows[-1])
    limits = {
        quantity: Floor(FACTOR * floor.norm, FACTOR * floor.entry)
        for quantity, floor in row.floors.items()
    }
    return Tolerance(name, limits, row)


_SMALL = GPTConfig(layers=2, heads=2, width=32, context=16)
_MEDIUM = GPTConfig(layers=4, heads=4, width=128, context=64)
_FULL = GPTConfig()


def _row(
    precision: PrecisionName,
    config: GPTConfig,
    batch_size: int,
    steps: int,
    device: str,
    *floors: tuple[float, float],
) -> NoiseFloor:
    by_quantity = {
        quantity: Floor(*floor) for quantity, floor in zip(QUANTITIES, floors, strict=True)
    }
    return NoiseFloor(precision, config, batch_size, steps, device, by_quantity)


#: Recorded by ``sql-oracle noise``.
MEASURED: tuple[NoiseFloor, ...] = (
    _row("float64", _SMALL, 3, 5, "cpu", (4.3e-16, 2.1e-16), (1.2e-15, 4.8e-15), (3.3e-16, 1.7e-16), (1.7e-16, 5e-15), (1.9e-15, 3.5e-15)),
    _row("float32", _SMALL, 3, 5, "cpu", (1.7e-07, 8.6e-08), (6.7e-07, 2.5e-06), (1.3e-07, 6.6e-08), (1.3e-07, 2.9e-06), (7.7e-07, 2.5e-06)),
)

"""How far two correct computations may differ, by precision, and why.

Every tolerance is ``FACTOR`` times a measured noise floor: PyTorch against itself, as the oracle
runs it and in another order or a wider precision, with the recipe's optimizer, schedule and dropout
(:mod:`sql_oracle.noise`, command ``sql-oracle noise``). Noise grows with the size of the model, the
number of updates and the learning rate, so floors are recorded for several sizes and lengths; a
check uses the floor of the smallest recorded size, length and learning rate that are not below its
own.

Single entries of weights have no limit of their own: AdamW turns the sign of a vanishing gradient
into a whole step, so their noise has a heavy tail. Gradients and moments do have one, and the norm
error of weights has.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sql_oracle.errors import OracleError
from sql_oracle.floors import MEASURED, QUANTITIES, Floor, NoiseFloor
from sql_oracle.precision import PrecisionName, precision_policy

#: Tolerance over noise floor. A check looser than ten times its floor would prove little.
FACTOR = 8.0


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


def tolerance_for(
    precision: str, *, parameters: int, steps: int, device: str, learning_rate: float = 0.0
) -> Tolerance:
    """The tolerance for a model with ``parameters`` weights checked over ``steps`` updates.

    Args:
        precision: name of the policy. ``tf32`` on a CPU is float32, and is judged as such.
        parameters: number of weights of the model.
        steps: updates that the two sides make independently of each other.
        device: a floor measured on the same kind of device is preferred.
        learning_rate: the largest of the checked updates; the recipe's peak, 1e-3, is the largest
            that floors are recorded for, and stands for all above it.

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
    fast = max(row.learning_rate for row in rows)
    rows = [row for row in rows if row.learning_rate >= min(learning_rate, fast)]
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
    limits["weight"] = Floor(limits["weight"].norm, math.inf)
    return Tolerance(name, limits, row)

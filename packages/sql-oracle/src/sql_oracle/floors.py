"""Recorded noise floors: PyTorch against itself, see :mod:`sql_oracle.noise`."""

from collections.abc import Mapping
from dataclasses import dataclass

from sql_oracle.precision import PrecisionName
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


#: Recorded by ``sql-oracle noise`` on CPUs; each row the largest of its seeds.
MEASURED: tuple[NoiseFloor, ...] = (
    _row(
        "float64",
        _SMALL,
        3,
        5,
        "cpu",
        (4.3e-16, 2.1e-16),
        (1.1e-15, 4.9e-15),
        (3.3e-16, 1.7e-16),
        (1.7e-16, 5.0e-15),
        (1.9e-15, 3.5e-15),
    ),
    _row(
        "float32",
        _SMALL,
        3,
        5,
        "cpu",
        (1.7e-07, 8.6e-08),
        (6.7e-07, 2.5e-06),
        (1.3e-07, 6.6e-08),
        (1.3e-07, 2.9e-06),
        (7.7e-07, 2.5e-06),
    ),
    _row(
        "tf32",
        _SMALL,
        3,
        5,
        "cpu (emulated)",
        (2.4e-06, 1.2e-06),
        (8.8e-04, 4.8e-03),
        (5.7e-05, 2.8e-05),
        (4.4e-05, 1.8e-03),
        (1.4e-03, 4.5e-03),
    ),
    _row(
        "bfloat16",
        _SMALL,
        3,
        5,
        "cpu",
        (3.1e-05, 1.5e-05),
        (8.8e-03, 3.4e-02),
        (9.1e-04, 4.5e-04),
        (1.1e-04, 2.0e-03),
        (9.4e-03, 3.4e-02),
    ),
    _row(
        "float64",
        _MEDIUM,
        4,
        5,
        "cpu",
        (2.1e-16, 1.1e-16),
        (1.6e-15, 1.7e-14),
        (6.2e-16, 3.1e-16),
        (5.6e-16, 7.0e-14),
        (2.4e-15, 8.2e-15),
    ),
    _row(
        "float32",
        _MEDIUM,
        4,
        5,
        "cpu",
        (1.7e-07, 8.7e-08),
        (6.9e-07, 1.0e-05),
        (3.4e-07, 1.7e-07),
        (2.2e-07, 2.2e-05),
        (9.7e-07, 5.5e-06),
    ),
    _row(
        "tf32",
        _MEDIUM,
        4,
        5,
        "cpu (emulated)",
        (3.6e-06, 1.8e-06),
        (7.5e-04, 6.4e-03),
        (6.5e-05, 3.3e-05),
        (5.3e-05, 2.7e-03),
        (9.6e-04, 5.1e-03),
    ),
    _row(
        "bfloat16",
        _MEDIUM,
        4,
        5,
        "cpu",
        (3.6e-05, 1.8e-05),
        (6.3e-03, 4.7e-02),
        (3.0e-04, 1.5e-04),
        (1.6e-04, 5.3e-03),
        (7.6e-03, 4.7e-02),
    ),
    _row(
        "float64",
        _SMALL,
        3,
        100,
        "cpu",
        (4.4e-16, 2.2e-16),
        (1.7e-14, 3.6e-14),
        (1.8e-15, 8.9e-16),
        (5.9e-16, 5.1e-15),
        (7.0e-15, 1.7e-14),
    ),
    _row(
        "float32",
        _SMALL,
        3,
        100,
        "cpu",
        (2.0e-07, 1.0e-07),
        (1.3e-05, 2.7e-05),
        (2.7e-06, 1.4e-06),
        (5.5e-07, 3.1e-06),
        (9.1e-06, 2.0e-05),
    ),
    _row(
        "tf32",
        _SMALL,
        3,
        100,
        "cpu (emulated)",
        (7.8e-06, 3.9e-06),
        (4.0e-03, 1.0e-02),
        (6.5e-04, 3.3e-04),
        (1.5e-04, 1.8e-03),
        (2.1e-03, 8.5e-03),
    ),
    _row(
        "bfloat16",
        _SMALL,
        3,
        100,
        "cpu",
        (1.7e-04, 8.4e-05),
        (1.2e-01, 3.1e-01),
        (2.7e-02, 1.4e-02),
        (2.1e-03, 7.4e-03),
        (6.6e-02, 2.1e-01),
    ),
    _row(
        "float64",
        _FULL,
        2,
        5,
        "cpu",
        (2.2e-16, 2.2e-16),
        (3.0e-15, 2.8e-14),
        (1.0e-15, 5.1e-16),
        (3.6e-16, 1.3e-13),
        (3.5e-15, 2.0e-14),
    ),
    _row(
        "float32",
        _FULL,
        2,
        5,
        "cpu",
        (1.7e-07, 1.2e-07),
        (9.4e-07, 1.2e-05),
        (5.7e-06, 2.9e-06),
        (1.4e-07, 6.8e-05),
        (1.2e-05, 1.3e-05),
    ),
    _row(
        "tf32",
        _FULL,
        2,
        5,
        "cpu (emulated)",
        (1.1e-05, 5.6e-06),
        (9.3e-04, 1.2e-02),
        (1.3e-04, 6.6e-05),
        (5.4e-05, 3.5e-03),
        (1.0e-03, 8.0e-03),
    ),
    _row(
        "bfloat16",
        _FULL,
        2,
        5,
        "cpu",
        (8.1e-05, 4.1e-05),
        (8.1e-03, 1.1e-01),
        (5.0e-04, 2.5e-04),
        (2.0e-04, 9.0e-03),
        (8.0e-03, 8.5e-02),
    ),
)

"""Lion in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from .base import (
    Decay,
    ParameterTable,
    check_betas,
    check_decay,
    check_decay_rates,
    decay_of,
    number,
)


@dataclass(frozen=True, slots=True)
class Lion:
    """Evolved sign momentum (Chen et al., 2023, "Symbolic discovery of optimization algorithms").

    With g the clipped gradient and d the table's decay::

        w ← w - lr (sign(β₁ m + (1 - β₁) g) + d w)
        m ← β₂ m + (1 - β₂) g

    Attributes:
        betas: interpolation of the update and decay of the momentum, each in [0, 1).
        weight_decay: for all tables, or by table name (0 for those not named).

    Raises:
        SessionError: a number outside its range, or a decay for an unknown table.
    """

    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: Decay = 0.0

    def __post_init__(self) -> None:
        check_betas("Lion", self.betas)
        check_decay_rates("Lion", self.weight_decay)

    @property
    def slots(self) -> tuple[str, ...]:
        """The momentum."""
        return ("m",)

    def statements(self, parameters: Sequence[ParameterTable]) -> Mapping[str, str]:
        """Two statements for each table."""
        check_decay("Lion", self.weight_decay, parameters)
        b1, b2 = (number(b) for b in self.betas)
        c1, c2 = (number(1.0 - b) for b in self.betas)
        statements = {}
        for p in parameters:
            decay = decay_of(self.weight_decay, p.name)
            kept = f"w.val * (1.0 - h.lr * {number(decay)})" if decay else "w.val"
            statements[p.next()] = f"""SELECT {p.keys("w")}{kept}
       - h.lr * SIGNUM({b1} * m.val + {c1} * (g.val * c.val)) AS val
{p.source(p.name, "w")}
{p.join(p.slot("m"), "m", "w")}
{p.join(p.gradient, "g", "w")}
CROSS JOIN clip c
CROSS JOIN hyper h"""
            statements[p.next("m")] = f"""SELECT {p.keys("s")}
       {b2} * s.val + {c2} * (g.val * c.val) AS val
{p.source(p.slot("m"), "s")}
{p.join(p.gradient, "g", "s")}
CROSS JOIN clip c"""
        return statements

    def to_json(self) -> dict[str, object]:
        """Kind and hyperparameters."""
        return {"kind": "lion", **asdict(self)}

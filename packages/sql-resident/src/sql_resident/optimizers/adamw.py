"""AdamW in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from .base import (
    Decay,
    ParameterTable,
    check_betas,
    check_decay,
    check_decay_rates,
    check_rate,
    decay_of,
    number,
)


@dataclass(frozen=True, slots=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019, algorithm 2).

    With g the clipped gradient, t the 1-based update and d the table's decay::

        m ← β₁ m + (1 - β₁) g
        v ← β₂ v + (1 - β₂) g²
        w ← w - lr d w - lr (m / (1 - β₁ᵗ)) / (√(v / (1 - β₂ᵗ)) + ε)

    Attributes:
        betas: decay of the two moments, each in [0, 1).
        eps: added to the denominator.
        weight_decay: for all tables, or by table name (0 for those not named).

    Raises:
        SessionError: a number outside its range, or a decay for an unknown table.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: Decay = 0.01

    def __post_init__(self) -> None:
        check_betas("AdamW", self.betas)
        check_rate("AdamW", "eps", self.eps)
        check_decay_rates("AdamW", self.weight_decay)

    @property
    def slots(self) -> tuple[str, ...]:
        """First and second moment."""
        return ("m", "v")

    def statements(self, parameters: Sequence[ParameterTable]) -> Mapping[str, str]:
        """One statement for the bias corrections, three for each table."""
        check_decay("AdamW", self.weight_decay, parameters)
        b1, b2 = (number(b) for b in self.betas)
        c1, c2 = (number(1.0 - b) for b in self.betas)
        statements = {
            "adamw": f"""SELECT h.lr, h.lr / (1.0 - POWER({b1}, h.step + 1)) AS rate,
       SQRT(1.0 - POWER({b2}, h.step + 1)) AS root
FROM hyper h"""
        }
        for p in parameters:
            g = "(g.val * c.val)"
            statements[p.next("m")] = f"""SELECT {p.keys("s")}{b1} * s.val + {c1} * {g} AS val
{p.source(p.slot("m"), "s")}
{p.join(p.gradient, "g", "s")}
CROSS JOIN clip c"""
            statements[p.next("v")] = f"""SELECT {p.keys("s")}
       {b2} * s.val + {c2} * ({g} * {g}) AS val
{p.source(p.slot("v"), "s")}
{p.join(p.gradient, "g", "s")}
CROSS JOIN clip c"""
            kept = "w.val"
            decay = decay_of(self.weight_decay, p.name)
            if decay:
                kept = f"w.val * (1.0 - a.lr * {number(decay)})"
            statements[p.next()] = f"""SELECT {p.keys("w")}{kept}
       - a.rate * (m.val / (SQRT(v.val) / a.root + {number(self.eps)})) AS val
{p.source(p.name, "w")}
{p.join(p.next("m"), "m", "w")}
{p.join(p.next("v"), "v", "w")}
CROSS JOIN adamw a"""
        return statements

    def to_json(self) -> dict[str, object]:
        """Kind and hyperparameters."""
        return {"kind": "adamw", **asdict(self)}

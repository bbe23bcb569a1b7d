"""SGD with momentum in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from sql_resident.errors import SessionError

from .base import (
    Decay,
    ParameterTable,
    check_decay,
    check_decay_rates,
    check_rate,
    decay_of,
    number,
)


@dataclass(frozen=True, slots=True)
class SGD:
    """Gradient descent with momentum and decoupled weight decay.

    Momentum as in Sutskever et al. (2013), in the form that accumulates the gradient::

        m ← μ m + g
        w ← w - lr d w - lr m            (Nesterov: - lr (g + μ m))

    Attributes:
        momentum: μ in [0, 1); 0 keeps no state.
        nesterov: look ahead along the momentum.
        weight_decay: for all tables, or by table name (0 for those not named).

    Raises:
        SessionError: a number outside its range, or a decay for an unknown table.
    """

    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: Decay = 0.0

    def __post_init__(self) -> None:
        check_rate("SGD", "momentum", self.momentum, below=1.0)
        if not isinstance(self.nesterov, bool):
            raise SessionError(f"SGD: nesterov is {self.nesterov!r}; use True or False")
        check_decay_rates("SGD", self.weight_decay)

    @property
    def slots(self) -> tuple[str, ...]:
        """The momentum, if there is any."""
        return ("m",) if self.momentum else ()

    def statements(self, parameters: Sequence[ParameterTable]) -> Mapping[str, str]:
        """Up to two statements for each table."""
        check_decay("SGD", self.weight_decay, parameters)
        statements = {}
        for p in parameters:
            gradient, joins = "(g.val * c.val)", [p.join(p.gradient, "g", "w")]
            direction = gradient
            if self.momentum:
                mu = number(self.momentum)
                statements[p.next("m")] = f"""SELECT {p.keys("s")}{mu} * s.val + {gradient} AS val
{p.source(p.slot("m"), "s")}
{p.join(p.gradient, "g", "s")}
CROSS JOIN clip c"""
                joins.append(p.join(p.next("m"), "m", "w"))
                direction = f"({gradient} + {mu} * m.val)" if self.nesterov else "m.val"
            decay = decay_of(self.weight_decay, p.name)
            kept = f"w.val * (1.0 - h.lr * {number(decay)})" if decay else "w.val"
            statements[p.next()] = "\n".join(
                [
                    f"SELECT {p.keys('w')}{kept} - h.lr * {direction} AS val",
                    p.source(p.name, "w"),
                    *joins,
                    "CROSS JOIN clip c",
                    "CROSS JOIN hyper h",
                ]
            )
        return statements

    def to_json(self) -> dict[str, object]:
        """Kind and hyperparameters."""
        return {"kind": "sgd", **asdict(self)}

"""Optimizers as SQL: a pure description of state tables and of the update's statements."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from sql_resident.arguments import real
from sql_resident.errors import SessionError

_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")


def identifier(name: str) -> str:
    """The name as SQL writes it: quoted unless it is plain lower case."""
    if _PLAIN.fullmatch(name):
        return name
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class ParameterTable:
    """A parameter table as an optimizer sees it.

    Attributes:
        name: the table; its value column is ``val``.
        dims: its key columns.
    """

    name: str
    dims: tuple[str, ...]

    def slot(self, slot: str) -> str:
        """Name of the table that holds one of the optimizer's state arrays."""
        return f"{self.name}_{slot}"

    @property
    def gradient(self) -> str:
        """Name of the statement that gives the raw gradient."""
        return f"{self.name}_grad"

    def next(self, slot: str | None = None) -> str:
        """Name of the statement that gives the next weights, or a slot's next state."""
        return f"{self.slot(slot) if slot else self.name}_next"

    def keys(self, alias: str) -> str:
        """The key columns of ``alias``, for a SELECT list (empty for a single number)."""
        return "".join(f"{identifier(alias)}.{identifier(d)}, " for d in self.dims)

    def source(self, table: str, alias: str) -> str:
        """``FROM table alias``."""
        return f"FROM {identifier(table)} {alias}"

    def join(self, table: str, alias: str, to: str) -> str:
        """``JOIN table alias ON`` all key columns of ``to``."""
        if not self.dims:
            return f"CROSS JOIN {identifier(table)} {alias}"
        names = [identifier(d) for d in self.dims]
        on = " AND ".join(f"{alias}.{d} = {to}.{d}" for d in names)
        return f"JOIN {identifier(table)} {alias} ON {on}"


@runtime_checkable
class Optimizer(Protocol):
    """What a session needs of an optimizer.

    ``statements`` may read, for each parameter table ``w``: the table itself, its slots
    (``w_m`` ...), ``w_grad`` (raw gradient), and the one-row tables ``clip`` (column
    ``val``, the factor that clips the gradient) and ``hyper`` (``step``, ``lr`` ...). For
    each parameter it must define ``w_next`` and ``w_<slot>_next``, columns: keys, ``val``.
    """

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state arrays kept for each parameter, shaped like it, starting at 0."""
        ...

    def statements(self, parameters: Sequence[ParameterTable]) -> Mapping[str, str]:
        """SQL by statement name, in an order in which each reads only earlier ones."""
        ...

    def to_json(self) -> dict[str, object]:
        """The configuration, for the checkpoint."""
        ...


Decay = float | Mapping[str, float]


def decay_of(decay: Decay, parameter: str) -> float:
    """The weight decay of one table: the mapping's entry (0 where it has none), or the number."""
    if isinstance(decay, Mapping):
        return float(decay.get(parameter, 0.0))
    return float(decay)


def check_decay(name: str, decay: Decay, parameters: Sequence[ParameterTable]) -> None:
    """Refuse a decay for a table that is not a parameter.

    Raises:
        SessionError: naming the table and the parameters.
    """
    if not isinstance(decay, Mapping):
        return
    known = [p.name for p in parameters]
    for table in decay:
        if table not in known:
            raise SessionError(
                f"{name}: weight_decay names {table!r}, which is no parameter table; "
                f"parameters are: {', '.join(known)}"
            )


def check_rate(name: str, field: str, value: float, below: float = float("inf")) -> None:
    """Refuse a hyperparameter outside ``[0, below)``.

    Raises:
        SessionError: naming it.
    """
    found = real(value)
    if found is None:
        raise SessionError(f"{name}: {field} is {value!r}; it must be a number")
    if not 0 <= found < below:
        limit = "" if below == float("inf") else f" and below {below:g}"
        raise SessionError(f"{name}: {field} is {value!r}; it must be at least 0{limit}")


def check_betas(name: str, betas: tuple[float, float]) -> None:
    """Refuse what is no pair of numbers in ``[0, 1)``.

    Raises:
        SessionError: naming it.
    """
    if not isinstance(betas, Sequence) or isinstance(betas, str) or len(betas) != 2:
        raise SessionError(f"{name}: betas is {betas!r}; it must be two numbers")
    for i, beta in enumerate(betas):
        check_rate(name, f"betas[{i}]", beta, below=1.0)


def check_decay_rates(name: str, decay: Decay) -> None:
    """Refuse a negative or infinite decay, alone or of a table.

    Raises:
        SessionError: naming it.
    """
    if not isinstance(decay, Mapping):
        check_rate(name, "weight_decay", decay)
        return
    for table, value in decay.items():
        check_rate(name, f"weight_decay[{table!r}]", value)


def number(value: float) -> str:
    """A float literal that SQL reads back as the same DOUBLE."""
    return repr(float(value))

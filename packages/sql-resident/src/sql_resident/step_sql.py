"""The whole training step as one SQL statement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sql_compact import split_ctes

from .errors import SessionError
from .optimizers import Optimizer, ParameterTable
from .optimizers.base import identifier

#: Added to the norm before dividing, as torch.nn.utils.clip_grad_norm_ does.
CLIP_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class StepSQL:
    """A training step as one statement.

    Attributes:
        text: the statement; it can be read, kept, and run by any engine under ddxdb.
        tables: names of the common tables that are the step's own, in order.
    """

    text: str
    tables: tuple[str, ...]


def step_sql(
    loss: str,
    parameters: Sequence[ParameterTable],
    optimizer: Optimizer,
    clip_norm: float | None,
) -> StepSQL:
    """The step: model and loss, gradients, clipping, update, and the sum that checks it.

    Raises:
        SessionError: the loss query has a common table of a name that the step needs.
    """
    ctes, final = split_ctes(loss)
    own = _own_tables(final, parameters, optimizer, clip_norm)
    taken = {"hyper", *own, *(p.slot(s) for p in parameters for s in optimizer.slots)}
    for cte in ctes:
        if cte.name.strip('"').lower() in taken:
            raise SessionError(
                f"loss: the common table {cte.name} has the name of one of the step's own; "
                "rename it"
            )
    model = [f"{c.name}{_columns(c.columns)} AS ({c.body})" for c in ctes]
    step = [f"{identifier(name)} AS (\n{body}\n)" for name, body in own.items()]
    select = (
        "SELECT loss.*, grad_norm.val AS grad_norm, state_sum.val AS state_sum\n"
        "FROM loss CROSS JOIN grad_norm CROSS JOIN state_sum"
    )
    return StepSQL("WITH " + ",\n".join(model + step) + f"\n{select}\n", tuple(own))


def _own_tables(
    final: str,
    parameters: Sequence[ParameterTable],
    optimizer: Optimizer,
    clip_norm: float | None,
) -> dict[str, str]:
    tables = {"loss": final}
    for p in parameters:
        name = identifier(p.name)
        tables[p.gradient] = f"SELECT {p.keys(p.name)}grad(loss, {name}.val) AS val\nFROM {name}"
    squares = _union("SUM(val * val)", [p.gradient for p in parameters])
    tables["grad_norm"] = f"SELECT SQRT(SUM(val)) AS val FROM ({squares})"
    tables["clip"] = "SELECT 1.0 AS val"
    if clip_norm is not None:
        tables["clip"] = (
            f"SELECT LEAST(1.0, {float(clip_norm)!r} / (val + {CLIP_EPS!r})) AS val FROM grad_norm"
        )
    tables.update(optimizer.statements(parameters))
    state = [name for p in parameters for name in (p.next(), *map(p.next, optimizer.slots))]
    tables["state_sum"] = f"SELECT SUM(val) AS val FROM ({_union('SUM(val)', state)})"
    return tables


def _union(aggregate: str, tables: Sequence[str]) -> str:
    """One row for each table with its aggregate."""
    rows = [f"SELECT {aggregate} AS val FROM {identifier(t)}" for t in tables]
    return "\n  " + "\n  UNION ALL ".join(rows)


def evaluation_sql(loss: str, hyper: Sequence[str]) -> str:
    """The loss as the common table ``loss``, with ``hyper.dropout`` 0 if there is one."""
    ctes, final = split_ctes(loss)
    columns = ", ".join("0.0 AS dropout" if name == "dropout" else name for name in hyper)
    tables = [f"hyper AS (SELECT {columns} FROM hyper)"]
    tables += [f"{c.name}{_columns(c.columns)} AS ({c.body})" for c in ctes]
    tables.append(f"loss AS ({final})")
    return "WITH " + ",\n".join(tables) + "\nSELECT * FROM loss"


def _columns(columns: Sequence[str] | None) -> str:
    return "" if columns is None else f" ({', '.join(columns)})"

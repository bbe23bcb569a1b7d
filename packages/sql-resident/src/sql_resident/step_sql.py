"""The whole training step as named SQL statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sql_compact import split_ctes

from .errors import SessionError
from .optimizers import Optimizer, ParameterTable
from .optimizers.base import identifier

#: Added to the norm before dividing, as torch.nn.utils.clip_grad_norm_ does.
CLIP_EPS = 1e-6


def step_statements(
    loss: str,
    parameters: Sequence[ParameterTable],
    optimizer: Optimizer,
    clip_norm: float | None,
) -> dict[str, str]:
    """Statements of one step: loss, gradients, clipping, update, and the sum that checks it.

    Each statement may read those before it by name.

    Raises:
        SessionError: a name that a statement needs is taken by the loss query.
    """
    ctes, final = split_ctes(loss)
    own = _own_names(parameters, optimizer)
    for cte in ctes:
        if cte.name.strip('"').lower() in own:
            raise SessionError(
                f"loss: the common table {cte.name} has the name of one of the step's own "
                "statements; rename it"
            )
    model = ",\n".join(f"{c.name}{_columns(c.columns)} AS ({c.body})" for c in ctes)
    model = "WITH " + (model + ",\n" if model else "")
    statements = {"loss": loss.strip().rstrip(";")}
    for p in parameters:
        statements[p.gradient] = (
            f"{model}step_loss AS ({final})\n"
            f"SELECT {p.keys(p.name)}grad(step_loss, {identifier(p.name)}.val) AS val\n"
            f"FROM {identifier(p.name)}"
        )
    squares = "\n  UNION ALL ".join(
        f"SELECT SUM(val * val) AS val FROM {identifier(p.gradient)}" for p in parameters
    )
    statements["grad_norm"] = f"SELECT SQRT(SUM(val)) AS val FROM (\n  {squares})"
    statements["clip"] = "SELECT 1.0 AS val"
    if clip_norm is not None:
        statements["clip"] = (
            f"SELECT LEAST(1.0, {float(clip_norm)!r} / (val + {CLIP_EPS!r})) AS val FROM grad_norm"
        )
    statements.update(optimizer.statements(parameters))
    sums = "\n  UNION ALL ".join(
        f"SELECT SUM(val) AS val FROM {identifier(name)}"
        for p in parameters
        for name in (p.next(), *(p.next(s) for s in optimizer.slots))
    )
    statements["state_sum"] = f"SELECT SUM(val) AS val FROM (\n  {sums})"
    return statements


def evaluation_statement(loss: str, hyper: Sequence[str]) -> str:
    """The loss query with ``hyper.dropout`` 0 whatever the session's value."""
    if "dropout" not in hyper:
        return loss
    ctes, final = split_ctes(loss)
    columns = ", ".join("0.0 AS dropout" if name == "dropout" else name for name in hyper)
    replaced = [f"hyper AS (SELECT {columns} FROM hyper)"]
    replaced += [f"{c.name}{_columns(c.columns)} AS ({c.body})" for c in ctes]
    return "WITH " + ",\n".join(replaced) + "\n" + final


def as_text(statements: Mapping[str, str]) -> str:
    """The statements as one SQL text, each under its name."""
    return "\n\n".join(f"-- {name}\n{sql};" for name, sql in statements.items()) + "\n"


def _own_names(parameters: Sequence[ParameterTable], optimizer: Optimizer) -> set[str]:
    names = {"step_loss", "grad_norm", "clip", "state_sum", "hyper"}
    for p in parameters:
        names |= {p.gradient, p.next()}
        for slot in optimizer.slots:
            names |= {p.slot(slot), p.next(slot)}
    return {name.lower() for name in names}


def _columns(columns: Sequence[str] | None) -> str:
    return "" if columns is None else f" ({', '.join(columns)})"

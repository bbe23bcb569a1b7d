"""The statements of a session: the whole step, its two halves when gradients are accumulated,
and the evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sql_compact import split_ctes

from .arguments import kind
from .errors import SessionError
from .layouts import EMA_SLOT
from .optimizers import Optimizer, ParameterTable
from .optimizers.base import identifier, number
from .queries import check_query

#: Added to the norm before dividing, as torch.nn.utils.clip_grad_norm_ does.
CLIP_EPS = 1e-6
#: One row (loss, weight): sums over the micro-batches so far.
ACCUMULATED = "accumulated"
#: One row (weight): that of the micro-batch at hand.
MICRO_BATCH = "micro_batch"


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a training step is made of.

    Attributes:
        loss: the loss query.
        parameters: the tables it is minimized over.
        clip_norm: global norm that gradients are clipped to; None: they are not.
        ema_decay: of the moving average of the weights; None: there is none.
        inputs: names of the other tables: batch and ``hyper``.
    """

    loss: str
    parameters: tuple[ParameterTable, ...]
    optimizer: Optimizer
    clip_norm: float | None
    ema_decay: float | None
    inputs: tuple[str, ...]

    @property
    def slots(self) -> tuple[str, ...]:
        """State arrays kept for each parameter besides the weights."""
        return state_slots(self.optimizer, self.ema_decay)


@dataclass(frozen=True, slots=True)
class StepSQL:
    """A statement and its own common tables.

    Attributes:
        text: the statement; it can be read, kept, and run by any engine under ddxdb.
        tables: names of the common tables that are not the loss query's, in order.
    """

    text: str
    tables: tuple[str, ...]


def state_slots(optimizer: Optimizer, ema_decay: float | None) -> tuple[str, ...]:
    """The optimizer's slots, and that of the average.

    Raises:
        SessionError: the optimizer's slots are no names, repeat, or have that of the average.
    """
    slots = optimizer.slots
    if not isinstance(slots, list | tuple) or not all(isinstance(s, str) and s for s in slots):
        raise SessionError(
            f"optimizer: slots is {slots!r}; it must be a tuple of names, such as ('m', 'v')"
        )
    if len(set(slots)) != len(slots):
        raise SessionError(f"optimizer: slots repeat: {list(slots)}")
    if ema_decay is None:
        return tuple(slots)
    if EMA_SLOT in slots:
        raise SessionError(f"optimizer: the slot {EMA_SLOT!r} is the session's own; rename it")
    return (*slots, EMA_SLOT)


def gradient_sum(parameter: ParameterTable) -> str:
    """Name of the table that a parameter's gradients are accumulated in."""
    return f"{parameter.gradient}_sum"


def step_sql(recipe: Recipe) -> StepSQL:
    """The step: model and loss, gradients, clipping, update, and the sum that checks it.

    Raises:
        SessionError: a table of the user has the name of one of the step's own, or the
            optimizer's statements are not what its protocol asks for.
    """
    model, final = _model(recipe.loss)
    own = {"loss": final, **_gradients(recipe), **_update(recipe)}
    _check_names(recipe, own)
    select = (
        "SELECT loss.*, grad_norm.val AS grad_norm, state_sum.val AS state_sum\n"
        "FROM loss CROSS JOIN grad_norm CROSS JOIN state_sum"
    )
    return _statement(model, own, select)


def accumulate_sql(recipe: Recipe, loss_column: str) -> StepSQL:
    """One micro-batch: loss and gradients times its weight, added to the sums so far."""
    model, final = _model(recipe.loss)
    own = {"loss": final, **_gradients(recipe)}
    loss = f"l.{identifier(loss_column)}"
    own[f"{ACCUMULATED}_next"] = (
        f"SELECT a.loss + m.weight * {loss} AS loss, a.weight + m.weight AS weight\n"
        f"FROM {ACCUMULATED} a CROSS JOIN {MICRO_BATCH} m CROSS JOIN loss l"
    )
    for p in recipe.parameters:
        own[f"{gradient_sum(p)}_next"] = (
            f"SELECT {p.keys('s')}s.val + m.weight * g.val AS val\n"
            f"{p.source(gradient_sum(p), 's')}\n{p.join(p.gradient, 'g', 's')}\n"
            f"CROSS JOIN {MICRO_BATCH} m"
        )
    sums = [f"{gradient_sum(p)}_next" for p in recipe.parameters]
    own["state_sum"] = f"SELECT SUM(val) AS val FROM ({_union('SUM(val)', sums)})"
    select = (
        "SELECT a.loss, a.weight, s.val AS state_sum\n"
        f"FROM {ACCUMULATED}_next a CROSS JOIN state_sum s"
    )
    return _statement(model, own, select)


def update_sql(recipe: Recipe) -> StepSQL:
    """The rest of the step, from accumulated gradients."""
    own = {"loss": f"SELECT loss / weight AS loss FROM {ACCUMULATED}"}
    for p in recipe.parameters:
        own[p.gradient] = (
            f"SELECT {p.keys('s')}s.val / a.weight AS val\n"
            f"{p.source(gradient_sum(p), 's')}\nCROSS JOIN {ACCUMULATED} a"
        )
    own |= _update(recipe)
    return _statement([], own, "SELECT * FROM state_sum")


def evaluation_sql(loss: str, hyper: Sequence[str]) -> StepSQL:
    """The loss as the common table ``loss``, with ``hyper.dropout`` 0 if there is one."""
    model, final = _model(loss)
    columns = ", ".join(
        "0.0 AS dropout" if name == "dropout" else identifier(name) for name in hyper
    )
    quiet = f"hyper AS (SELECT {columns} FROM hyper)"
    return _statement([quiet, *model], {"loss": final}, "SELECT * FROM loss")


def _model(loss: str) -> tuple[list[str], str]:
    ctes, final = split_ctes(loss)
    definitions = []
    for name, columns, body in ctes:
        listed = "" if columns is None else f" ({', '.join(columns)})"
        definitions.append(f"{name}{listed} AS ({body})")
    return definitions, final


def _statement(model: Sequence[str], own: Mapping[str, str], select: str) -> StepSQL:
    step = [f"{identifier(name)} AS (\n{body}\n)" for name, body in own.items()]
    return StepSQL("WITH " + ",\n".join([*model, *step]) + f"\n{select}\n", tuple(own))


def _gradients(recipe: Recipe) -> dict[str, str]:
    return {
        p.gradient: f"SELECT {p.keys(p.name)}grad(loss, {identifier(p.name)}.val) AS val\n"
        f"FROM {identifier(p.name)}"
        for p in recipe.parameters
    }


def _update(recipe: Recipe) -> dict[str, str]:
    """From raw gradients to the next state: norm, clipping, optimizer, average, check."""
    parameters = recipe.parameters
    squares = _union("SUM(val * val)", [p.gradient for p in parameters])
    tables = {"grad_norm": f"SELECT SQRT(SUM(val)) AS val FROM ({squares})"}
    tables["clip"] = "SELECT 1.0 AS val"
    if recipe.clip_norm is not None:
        tables["clip"] = (
            f"SELECT LEAST(1.0, {number(recipe.clip_norm)} / (val + {CLIP_EPS!r})) AS val "
            "FROM grad_norm"
        )
    update = _statements(recipe)
    _check_update(recipe, update, {"loss", *tables, *(p.gradient for p in parameters)})
    tables |= update
    if recipe.ema_decay is not None:
        kept, added = number(recipe.ema_decay), number(1.0 - recipe.ema_decay)
        for p in parameters:
            tables[p.next(EMA_SLOT)] = (
                f"SELECT {p.keys('e')}{kept} * e.val + {added} * w.val AS val\n"
                f"{p.source(p.slot(EMA_SLOT), 'e')}\n{p.join(p.next(), 'w', 'e')}"
            )
    state = [p.next(slot) for p in parameters for slot in (None, *recipe.slots)]
    tables["state_sum"] = f"SELECT SUM(val) AS val FROM ({_union('SUM(val)', state)})"
    return tables


def _statements(recipe: Recipe) -> dict[str, str]:
    """The optimizer's statements.

    Raises:
        SessionError, InvalidSQL: they do not map names to queries.
    """
    given = recipe.optimizer.statements(recipe.parameters)
    name = type(recipe.optimizer).__name__
    if not isinstance(given, Mapping):
        raise SessionError(
            f"optimizer {name}: its statements are a {kind(given)}; they must map names to SQL"
        )
    for statement, text in given.items():
        check_query(f"optimizer {name}: the statement {statement!r}", text)
    return dict(given)


def _union(aggregate: str, tables: Sequence[str]) -> str:
    """One row for each table with its aggregate."""
    rows = [f"SELECT {aggregate} AS val FROM {identifier(t)}" for t in tables]
    return "\n  " + "\n  UNION ALL ".join(rows)


def _check_update(recipe: Recipe, update: Mapping[str, str], others: set[str]) -> None:
    name = type(recipe.optimizer).__name__
    slots = recipe.optimizer.slots
    for p in recipe.parameters:
        for needed in (p.next(), *map(p.next, slots)):
            if needed not in update:
                raise SessionError(
                    f"optimizer {name}: it has no statement {needed!r}, the next state of "
                    f"{p.name!r}; it has: {list(update)}"
                )
    for statement in update:
        if statement in others or statement == "state_sum":
            raise SessionError(
                f"optimizer {name}: the statement {statement!r} has the name of one of the "
                "step's own; rename it"
            )


def _check_names(recipe: Recipe, own: Mapping[str, str]) -> None:
    """Refuse names of the user's that the session needs."""
    reserved = {*own, ACCUMULATED, f"{ACCUMULATED}_next", MICRO_BATCH, "hyper"}
    for p in recipe.parameters:
        reserved |= {gradient_sum(p), f"{gradient_sum(p)}_next", *map(p.slot, recipe.slots)}
    tables = [p.name for p in recipe.parameters]
    for table in (*tables, *recipe.inputs):
        if table in reserved - {"hyper"}:
            raise SessionError(f"table {table!r} has the name of one of the step's own; rename it")
    for cte in split_ctes(recipe.loss)[0]:
        name = cte.name[1:-1] if cte.name.startswith('"') else cte.name.lower()
        if name in reserved | set(tables) | set(recipe.inputs):
            raise SessionError(
                f"loss: the common table {cte.name} has the name of a table that the step "
                "needs; rename it"
            )

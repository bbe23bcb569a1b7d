"""The SQL session that the command line checks and times, built for a GPT.

The only module that touches ``sql_resident``, which is imported when a session is asked for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sql_oracle.errors import MissingFile, OracleError
from sql_oracle.mapping import GPT_DIMS, Array, gpt_mapping
from sql_oracle.precision import precision_policy
from sql_oracle.protocols import Session
from sql_oracle.reference import GPT, GPTConfig

if TYPE_CHECKING:
    from sql_resident import TrainingSession, WarmupCosine

#: Writes the loss query of a GPT of the given sizes.
LossSQL = Callable[[GPTConfig], str]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a GPT is trained, on either side.

    Attributes:
        config: sizes.
        batch_size: sequences in a batch.
        dropout: rate at every site.
        seed: of weights and masks.
        peak: learning rate at the end of the warm-up.
        floor: learning rate at the end.
        warmup: updates of the warm-up.
        total: update at which the floor is reached.
        betas: of AdamW.
        eps: of AdamW.
        weight_decay: by table.
        clip_norm: global norm.
    """

    config: GPTConfig
    batch_size: int = 12
    dropout: float = 0.2
    seed: int = 1337
    peak: float = 1e-3
    floor: float = 1e-4
    warmup: int = 100
    total: int = 5000
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = 1e-8
    weight_decay: Mapping[str, float] = field(
        default_factory=lambda: {
            table: 0.0 if table.startswith("ln_") else 0.1 for table in GPT_DIMS
        }
    )
    clip_norm: float = 1.0

    def initial_tables(self) -> dict[str, Array]:
        """Fresh weights as tables, float64 arrays."""
        model = GPT(self.config).double()
        model.initialise(self.seed)
        arrays = {name: p.detach().numpy() for name, p in model.named_parameters()}
        return gpt_mapping(self.config).to_tables(arrays)


def default_loss_sql() -> LossSQL:
    """The GPT in SQL that ``sql_resident`` brings along.

    Raises:
        OracleError: ``sql_resident`` cannot be imported.
    """
    try:
        from sql_resident import gpt
    except ImportError as error:
        raise OracleError(f"the SQL side cannot be imported: {error}") from error

    def write(config: GPTConfig) -> str:
        return gpt.loss_sql(
            gpt.GPTConfig(
                layers=config.layers,
                heads=config.heads,
                width=config.width,
                context=config.context,
                vocabulary=config.vocabulary,
            )
        )

    return write


def read_sql(path: str | Path) -> LossSQL:
    """The loss query of a file, whatever the sizes.

    Raises:
        MissingFile: no such file, or it is not text.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MissingFile(f"cannot read the loss query {path}: {error}") from error
    return lambda config: text


def build_session(
    recipe: Recipe,
    loss_sql: LossSQL,
    *,
    precision: str,
    device: str,
    compiled: bool | None = None,
    checkpoint: str | Path | None = None,
) -> Session:
    """A ``sql_resident.TrainingSession`` that trains the recipe.

    Args:
        recipe: what is trained.
        loss_sql: writes the loss query.
        precision: name of the policy.
        device: "cpu" or "cuda".
        compiled: compile the step; None means on CUDA only.
        checkpoint: weights, moments and step to continue from.

    Raises:
        OracleError: sql_resident cannot be imported, or CUDA is asked for and missing.
        MissingFile: there is no such checkpoint.
        CheckpointError: of ``sql_resident``; the checkpoint is unreadable or of another model.
        CompactError: the query does not fold into a program.
    """
    if checkpoint is not None and not Path(checkpoint).is_file():
        raise MissingFile(f"there is no checkpoint file {checkpoint}")
    session = _training_session(recipe, loss_sql, precision, device, compiled)
    if checkpoint is not None:
        session.restore(checkpoint)
        # Both sides go on with the recipe's settings, whatever the checkpoint was trained with.
        session.seed = recipe.seed
        session.set_hyper(dropout=recipe.dropout)
        session.learning_rate = _schedule(recipe)
    return session


def _schedule(recipe: Recipe) -> "WarmupCosine":
    from sql_resident import WarmupCosine

    return WarmupCosine(
        peak=recipe.peak, floor=recipe.floor, warmup=recipe.warmup, total=recipe.total
    )


def _training_session(
    recipe: Recipe, loss_sql: LossSQL, precision: str, device: str, compiled: bool | None
) -> "TrainingSession":
    try:
        import sql_resident
        import xarray
    except ImportError as error:
        raise OracleError(f"the SQL side cannot be imported: {error}") from error
    config = recipe.config
    policy = precision_policy(precision)
    token_input = {
        name: sql_resident.BatchInput(
            dims=("b", "t"),
            shape=(recipe.batch_size, config.context),
            column=column,
            domain=config.vocabulary,
        )
        for name, column in (("tokens", "token"), ("targets", "token"))
    }
    parameters = {
        table: xarray.DataArray(
            np.asarray(array, dtype=policy.numpy_dtype),
            dims=GPT_DIMS[table],
            coords={
                dim: np.arange(size) for dim, size in zip(GPT_DIMS[table], array.shape, strict=True)
            },
            name="val",
        )
        for table, array in recipe.initial_tables().items()
    }
    return sql_resident.TrainingSession(
        loss=loss_sql(config),
        parameters=parameters,
        batch=token_input,
        optimizer=sql_resident.AdamW(
            betas=recipe.betas, eps=recipe.eps, weight_decay=dict(recipe.weight_decay)
        ),
        clip_norm=recipe.clip_norm,
        learning_rate=_schedule(recipe),
        hyper={"dropout": recipe.dropout},
        seed=recipe.seed,
        device=device,
        precision=policy.name,
        compile=compiled,
    )

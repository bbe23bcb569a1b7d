"""Models with every kind of state, and runs of them resumed in a new process.

Usage: python resumed_run.py FOLDER TOTAL [MODEL DEVICE PRECISION [compile]]

Continues every checkpoint FOLDER/<n>.npz to TOTAL updates and writes FOLDER/<n>.end.npz: final
state, losses, gradient norms and learning rates of the updates made.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xarray as xr
from sql_resident import AdamW, BatchInput, TrainingSession, WarmupCosine
from sql_resident.gpt import TABLE_DIMS, GPTConfig, initial_weights, loss_sql

WORDS_LOSS = """
WITH embedded AS (
    SELECT t.b, t.t, e.c,
           e.val * dropout_keep(h.dropout, h.seed, h.step, 0, t.b, t.t, e.c) AS val
    FROM tokens t JOIN words e ON t.token = e.v CROSS JOIN hyper h
),
logits AS (
    SELECT x.b, x.t, w.v, SUM(x.val * w.val) AS val
    FROM embedded x JOIN readout w ON x.c = w.c GROUP BY x.b, x.t, w.v
),
total AS (SELECT b, t, SUM(EXP(val)) AS val FROM logits GROUP BY b, t)
SELECT AVG(LN(z.val) - l.val) AS loss
FROM total z JOIN targets y ON z.b = y.b AND z.t = y.t
JOIN logits l ON l.b = y.b AND l.t = y.t AND l.v = y.token
"""


@dataclass(frozen=True)
class Model:
    """A loss over ``tokens`` and ``targets``, where its weights start, its batch's shapes, and
    the largest learning rate of its schedule."""

    loss: str
    weights: Mapping[str, np.ndarray]
    dims: Mapping[str, tuple[str, ...]]
    shape: tuple[int, int]
    second_shape: tuple[int, int]
    vocabulary: int
    peak: float


def _words() -> Model:
    rng = np.random.default_rng(1)
    dims = {"words": ("v", "c"), "readout": ("v", "c")}
    weights = {name: rng.normal(size=(5, 6)).astype(np.float32) for name in dims}
    return Model(WORDS_LOSS, weights, dims, (4, 4), (2, 4), 5, 0.1)


def _gpt() -> Model:
    config = GPTConfig(layers=2, heads=2, width=128, context=64, vocabulary=65)
    weights = initial_weights(config, seed=1)
    return Model(loss_sql(config), weights, TABLE_DIMS, (4, 64), (2, 64), 65, 3e-3)


MODELS = {"words": _words, "gpt": _gpt}


def make_session(model: str = "words", **options) -> TrainingSession:
    """The model as it starts."""
    made = MODELS[model]()
    given = BatchInput(("b", "t"), made.shape, column="token", domain=made.vocabulary)
    settings = {
        "learning_rate": WarmupCosine(made.peak, made.peak / 10, warmup=5, total=20),
        "hyper": {"dropout": 0.3},
        "seed": 42,
        "on_non_finite": "skip",
        **options,
    }
    return TrainingSession(
        loss=made.loss,
        parameters={n: xr.DataArray(a, dims=made.dims[n]) for n, a in made.weights.items()},
        batch={"tokens": given, "targets": given},
        batch_shapes=[dict.fromkeys(("tokens", "targets"), made.second_shape)],
        optimizer=AdamW((0.9, 0.99), 1e-8, {next(iter(made.weights)): 0.1}),
        clip_norm=0.5,
        ema_decay=0.9,
        **settings,
    )


def batch(position: int, model: str = "words", second: bool = False) -> dict[str, np.ndarray]:
    """The batch of a data position; a pure function of it and a seed."""
    made = MODELS[model]()
    shape = made.second_shape if second else made.shape
    generator = np.random.default_rng((42, position))
    tokens, targets = generator.integers(0, made.vocabulary, size=(2, *shape))
    return {"tokens": tokens, "targets": targets}


def run_to(session: TrainingSession, total: int, model: str = "words") -> dict[str, np.ndarray]:
    """Continue to ``total`` updates; the final state, and what the updates reported."""
    reports = []
    while session.step_count < total:
        reports.append(session.step(batch(session.data_position, model)))
    numbers = [(r.step, r.loss, r.grad_norm, r.learning_rate) for r in reports]
    return {**session.state(), "reports": np.array(numbers).reshape(-1, 4)}


def main(
    folder: Path,
    total: int,
    model: str = "words",
    device: str = "cpu",
    precision: str = "float32",
    compiled: str | None = None,
) -> None:
    """Resume every checkpoint."""
    how = None if compiled is None else True
    session = make_session(model, device=device, precision=precision, compile=how)
    for path in sorted(folder.glob("[0-9]*.npz")):
        # Everything that a checkpoint holds is wrong before it is restored.
        session.learning_rate, session.seed = 9.0, 7
        session.set_hyper(dropout=0.9)
        session.restore(path)
        np.savez(path.with_suffix(".end.npz"), **run_to(session, total, model))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])

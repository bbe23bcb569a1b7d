"""A small model with every kind of state, and runs of it resumed in a new process.

Usage: python resumed_run.py FOLDER TOTAL

Continues every checkpoint FOLDER/<n>.npz to TOTAL updates and writes FOLDER/<n>.end.npz: final
state, losses, gradient norms and learning rates of the updates made.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import xarray as xr
from sql_resident import AdamW, BatchInput, TrainingSession, WarmupCosine

LOSS = """
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
SHAPE, VOCABULARY, WIDTH = (3, 4), 5, 6


def make_session(**options) -> TrainingSession:
    """The model as it starts."""
    rng = np.random.default_rng(1)
    given = BatchInput(("b", "t"), SHAPE, column="token", domain=VOCABULARY)
    weights = {"words": ("v", "c"), "readout": ("v", "c")}
    settings = {
        "learning_rate": WarmupCosine(peak=0.1, floor=0.01, warmup=5, total=20),
        "hyper": {"dropout": 0.3},
        "seed": 42,
        **options,
    }
    return TrainingSession(
        loss=LOSS,
        parameters={
            name: xr.DataArray(rng.normal(size=(VOCABULARY, WIDTH)).astype(np.float32), dims=dims)
            for name, dims in weights.items()
        },
        batch={"tokens": given, "targets": given},
        optimizer=AdamW((0.9, 0.99), 1e-8, {"words": 0.1}),
        clip_norm=0.5,
        ema_decay=0.9,
        on_non_finite="skip",
        **settings,
    )


def batch(position: int) -> dict[str, np.ndarray]:
    """The batch of a data position; a pure function of it and a seed."""
    tokens = np.random.default_rng((42, position)).integers(0, VOCABULARY, size=(2, *SHAPE))
    return {"tokens": tokens[0], "targets": tokens[1]}


def run_to(session: TrainingSession, total: int) -> dict[str, np.ndarray]:
    """Continue to ``total`` updates; the final state, and what the updates reported."""
    reports = []
    while session.step_count < total:
        reports.append(session.step(batch(session.data_position)))
    numbers = [(r.step, r.loss, r.grad_norm, r.learning_rate) for r in reports]
    return {**session.state(), "reports": np.array(numbers).reshape(-1, 4)}


def main(folder: Path, total: int) -> None:
    """Resume every checkpoint."""
    session = make_session()
    for path in sorted(folder.glob("[0-9]*.npz")):
        # Everything that a checkpoint holds is wrong before it is restored.
        session.learning_rate, session.seed = 9.0, 7
        session.set_hyper(dropout=0.9)
        session.restore(path)
        np.savez(path.with_suffix(".end.npz"), **run_to(session, total))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

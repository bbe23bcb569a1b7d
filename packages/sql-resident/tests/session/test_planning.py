"""Work of planning a step, counted: the queries that ddx asks for."""

from __future__ import annotations

import ddxdb
import xarray as xr
from sql_resident import AdamW, BatchInput, TrainingSession
from sql_resident.gpt import TABLE_DIMS, GPTConfig, initial_weights, loss_sql


def gpt(layers: int) -> TrainingSession:
    config = GPTConfig(layers=layers, heads=2, width=8, context=4, vocabulary=5)
    tokens = BatchInput(("b", "t"), (2, config.context), "token", config.vocabulary)
    return TrainingSession(
        loss=loss_sql(config),
        parameters={
            name: xr.DataArray(array, dims=TABLE_DIMS[name])
            for name, array in initial_weights(config, 0).items()
        },
        batch={"tokens": tokens, "targets": tokens},
        optimizer=AdamW(),
        learning_rate=1e-3,
        hyper={"dropout": 0.1},
    )


def test_the_queries_of_a_gpt_grow_linearly_with_its_layers(monkeypatch):
    """A residual stream without an end to its elementwise steps made them grow with the square."""
    stored: list[str] = []
    rewrite = ddxdb.rewrite

    def counting(backend, statements, dialect):
        materialize = backend.materialize

        def counted(name: str, plan: bytes) -> None:
            stored.append(name)
            materialize(name, plan)

        monkeypatch.setattr(backend, "materialize", counted)
        return rewrite(backend, statements, dialect)

    monkeypatch.setattr(ddxdb, "rewrite", counting)
    counts = []
    for layers in (2, 4, 6):
        stored.clear()
        gpt(layers)
        counts.append(len(stored))
    assert counts[2] - counts[1] == counts[1] - counts[0] > 0

"""The SQL of the model against PyTorch, run by DataFusion's row engine."""

import numpy as np
import pytest
import torch
from ddxdb import ad
from gpt_reference import (
    dropout_keep,
    philox4x32,
    reference_loss,
    row_engine,
    rows_sql,
    run_rows,
    with_erf_gradient,
)
from sql_resident.gpt import TABLE_DIMS, GPTConfig, logits_sql, loss_sql

BATCH = 2
HYPER = {"seed": 1337, "step": 3}


def small(layers: int, dropout: float) -> GPTConfig:
    return GPTConfig(layers=layers, heads=2, width=8, context=4, vocabulary=7, dropout=dropout)


def draw(config: GPTConfig) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    weights = {name: 0.4 * rng.normal(size=shape) for name, shape in config.table_shapes.items()}
    for name in ("ln_attn", "ln_mlp", "ln_final"):
        weights[name] += 1.0
    tokens, targets = rng.integers(0, config.vocabulary, size=(2, BATCH, config.context))
    return weights, tokens, targets


def test_philox_reproduces_the_published_vectors():
    zeros = ((0, 0, 0, 0), (0, 0))
    assert [int(word) for word in philox4x32(*zeros, rounds=7)] == [
        0x5F6FB709,
        0x0D893F64,
        0x4F121F81,
        0x4F730A48,
    ]
    assert [int(word) for word in philox4x32(*zeros, rounds=10)] == [
        0x6627E8D5,
        0xE169C58D,
        0xBC57AC4C,
        0x9B00DBD8,
    ]


def test_dropout_keeps_the_mean():
    kept = dropout_keep(0.25, 5, 7, 2, *np.indices((20, 30, 40)))
    assert set(np.unique(kept)) == {0.0, 1 / 0.75}
    # 24,000 draws: the mean's standard error is 0.0037.
    assert abs(kept.mean() - 1.0) < 0.015


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_loss_equals_pytorch(layers: int, dropout: float):
    config = small(layers, dropout)
    weights, tokens, targets = draw(config)
    tensors = {name: torch.from_numpy(values) for name, values in weights.items()}
    expected = reference_loss(config, tensors, tokens, targets, **HYPER).item()
    context = row_engine(config, weights, tokens, targets, **HYPER)
    (row,) = run_rows(context, loss_sql(config)).to_pylist()
    assert list(row) == ["loss"]
    assert abs(row["loss"] - expected) <= 1e-12 * abs(expected)


def test_every_dropout_site_changes_the_loss():
    config = small(2, 0.3)
    weights, tokens, targets = draw(config)
    context = row_engine(config, weights, tokens, targets, **HYPER)
    sql = loss_sql(config)
    (full,) = run_rows(context, sql).to_pylist()
    calls = [f"h.step, {site}," for site in range(3 * config.layers + 1)]
    for call in calls:
        assert sql.count(call) == 1
        (other,) = run_rows(context, sql.replace(call, "h.step, 99,")).to_pylist()
        assert other["loss"] != full["loss"]


def test_gradients_equal_autograd():
    config = small(1, 0.3)
    weights, tokens, targets = draw(config)
    tensors = {name: torch.from_numpy(v).requires_grad_() for name, v in weights.items()}
    reference_loss(config, tensors, tokens, targets, **HYPER).backward()
    context = row_engine(config, weights, tokens, targets, **HYPER)
    sql = with_erf_gradient(rows_sql(loss_sql(config)))
    ctes, select = sql.rsplit("SELECT", 1)
    statements = [
        f"{ctes}, loss AS (SELECT {select}) "
        f"SELECT {', '.join(dims)}, grad(loss, val) AS g FROM {name} ORDER BY {', '.join(dims)}"
        for name, dims in TABLE_DIMS.items()
    ]
    frames = ad.sql_all(context, statements)
    for name, frame in zip(TABLE_DIMS, frames, strict=True):
        found = np.array(frame.to_pydict()["g"], dtype=float).reshape(weights[name].shape)
        expected = tensors[name].grad.numpy()
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        assert error < 1e-12, f"{name}: {error}"


def test_logits_are_causal():
    config = small(2, 0.0)
    weights, tokens, targets = draw(config)

    def logits(tokens: np.ndarray) -> np.ndarray:
        context = row_engine(config, weights, tokens, targets, **HYPER)
        rows = run_rows(context, logits_sql(config) + " ORDER BY b, t, v").to_pydict()
        return np.array(rows["val"]).reshape(BATCH, config.context, config.vocabulary)

    before = logits(tokens)
    changed = tokens.copy()
    changed[:, 2] = (changed[:, 2] + 1) % config.vocabulary
    after = logits(changed)
    np.testing.assert_allclose(after[:, :2], before[:, :2], rtol=1e-12)
    assert np.abs(after[:, 2:] - before[:, 2:]).max() > 1e-3

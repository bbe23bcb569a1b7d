"""Gradients through dropout at each kind of site of the GPT, against autograd with that mask."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
import xarray as xr
from sql_compact import CompactContext
from sql_resident import SGD, BatchInput, TrainingSession
from sql_resident.gpt import TABLE_DIMS, GPTConfig, loss_sql

CONFIG = GPTConfig(layers=1, heads=2, width=8, context=4, vocabulary=7, dropout=0.0)
B, T, C, H = 2, CONFIG.context, CONFIG.width, CONFIG.heads
SITES = {0: "embedding", 1: "attention", 2: "projection", 3: "mlp"}
SHAPES = {0: (B, T, C), 1: (B, H, T, T), 2: (B, T, C), 3: (B, T, C)}
SEED, STEP, P = 1337, 0, 0.3


def mask(site: int, p: float) -> torch.Tensor:
    """The factors of a site: the SQL function over the site's indices."""
    context = CompactContext()
    dims = "ijkl"[: len(SHAPES[site])]
    context.register("x", np.zeros(SHAPES[site]), dims=tuple(dims))
    keys = ", ".join(dims)
    query = f"SELECT {keys}, dropout_keep({p}, {SEED}, {STEP}, {site}, {keys}) AS val FROM x"
    return torch.from_numpy(context.sql(query).to_xarray().values.copy())


def reference(w, tokens, targets, factors) -> torch.Tensor:
    """The same GPT in torch, multiplied by the factors at its four sites."""

    def norm(x, weight):
        return torch.nn.functional.layer_norm(x, (C,), weight)

    x = (w["wte"][tokens] + w["wpe"]) * factors[0]
    q, k, v = torch.einsum("btc,phdc->pbhtd", norm(x, w["ln_attn"][0]), w["attn_qkv"][0])
    scores = q @ k.transpose(-1, -2) / math.sqrt(CONFIG.head_width)
    hidden = torch.ones(T, T).triu(1).bool()
    attention = scores.masked_fill(hidden, -math.inf).softmax(-1) * factors[1]
    mixed = torch.einsum("bhtd,chd->btc", attention @ v, w["attn_out"][0])
    x = x + mixed * factors[2]
    wide = torch.nn.functional.gelu(norm(x, w["ln_mlp"][0]) @ w["mlp_in"][0].T)
    x = x + (wide @ w["mlp_out"][0].T) * factors[3]
    logits = norm(x, w["ln_final"]) @ w["wte"].T
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        n: (1.0 if n.startswith("ln_") else 0.0) + 0.4 * rng.normal(size=s)
        for n, s in CONFIG.table_shapes.items()
    }


@pytest.fixture(scope="module")
def session(weights) -> TrainingSession:
    """The GPT with a rate of its own at each site: ``hyper.p0`` to ``hyper.p3``."""
    sql = re.sub(r"h\.dropout(, h\.seed, h\.step, (\d))", r"h.p\2\1", loss_sql(CONFIG))
    tokens = BatchInput(("b", "t"), (B, T), column="token", domain=CONFIG.vocabulary)
    return TrainingSession(
        loss=sql,
        parameters={n: xr.DataArray(weights[n], dims=d) for n, d in TABLE_DIMS.items()},
        batch={"tokens": tokens, "targets": tokens},
        optimizer=SGD(momentum=0.0),
        hyper={f"p{site}": 0.0 for site in SITES},
        seed=SEED,
        precision="float64",
    )


@pytest.mark.parametrize(
    "active", [(0,), (1,), (2,), (3,), (0, 1, 2, 3)], ids=[*SITES.values(), "all"]
)
def test_gradients_equal_autograd_with_the_same_mask(active, session, weights):
    rng = np.random.default_rng(5)
    batch = {n: rng.integers(0, CONFIG.vocabulary, (B, T)) for n in ("tokens", "targets")}
    rates = {site: P if site in active else 0.0 for site in SITES}
    session.set_hyper(**{f"p{site}": rate for site, rate in rates.items()})
    factors = {site: mask(site, rate) for site, rate in rates.items()}
    assert all((factors[site] == 0).any() == (site in active) for site in SITES)
    tensors = {n: torch.from_numpy(a).clone().requires_grad_() for n, a in weights.items()}
    given = {n: torch.from_numpy(a) for n, a in batch.items()}
    reference(tensors, given["tokens"], given["targets"], factors).backward()
    for name, gradient in session.gradients(batch).items():
        expected = tensors[name].grad.numpy()
        error = np.linalg.norm(gradient - expected) / np.linalg.norm(expected)
        assert error < 1e-12, f"{name}: {error}"

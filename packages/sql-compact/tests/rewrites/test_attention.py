"""Attention is found in plain SQL, forward and backward, and computes the same."""

import math

import numpy as np
import pytest
import torch
from sql_compact import CompactContext
from sql_compact.functions.dropout import dropout_keep_numpy

SIZES = {"b": 2, "h": 2, "t": 5, "d": 4}
KEEP = "dropout_keep(0.25, 7, 3, 2, e.b, e.h, e.i, e.j)"


def attention_sql(visible="k.t <= q.t", keep=KEEP, scale="sqrt(4.0)", shift="m.val"):
    where = f" WHERE {visible}" if visible else ""
    dropped = f" * {keep}" if keep else ""
    return f"""
WITH s AS (
  SELECT q.b, q.h, q.t AS i, k.t AS j, SUM(q.val * k.val) / {scale} AS val
  FROM q JOIN k ON q.b = k.b AND q.h = k.h AND q.d = k.d{where}
  GROUP BY q.b, q.h, q.t, k.t),
m AS (SELECT b, h, i, MAX(ddx_stop_gradient(val)) AS val FROM s GROUP BY b, h, i),
e AS (SELECT s.b, s.h, s.i, s.j, exp(s.val - {shift}) AS val
  FROM s JOIN m ON s.b = m.b AND s.h = m.h AND s.i = m.i),
z AS (SELECT b, h, i, SUM(val) AS val FROM e GROUP BY b, h, i),
p AS (SELECT e.b, e.h, e.i, e.j, e.val / z.val{dropped} AS val
  FROM e JOIN z ON e.b = z.b AND e.h = z.h AND e.i = z.i),
y AS (SELECT p.b, p.h, p.i AS t, v.d, SUM(p.val * v.val) AS val
  FROM p JOIN v ON p.b = v.b AND p.h = v.h AND p.j = v.t GROUP BY p.b, p.h, p.i, v.d),
loss AS (SELECT SUM(y.val * y.val * g.val) AS l
  FROM y JOIN g ON y.b = g.b AND y.h = g.h AND y.t = g.t AND y.d = g.d)
"""


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=tuple(SIZES.values())) for name in "qkvg"}


@pytest.fixture
def context(arrays):
    context = CompactContext()
    for name, values in arrays.items():
        context.register(name, values, dims=tuple(SIZES))
    return context


def reference(arrays, causal=True, dropped=True):
    tensors = {n: torch.tensor(a, requires_grad=n in "qkv") for n, a in arrays.items()}
    scores = tensors["q"] @ tensors["k"].transpose(-1, -2) / math.sqrt(4.0)
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    weights = scores.softmax(-1)
    if dropped:
        index = np.indices(tuple(weights.shape))
        weights = weights * torch.tensor(dropout_keep_numpy(0.25, 7, 3, 2, *index))
    y = weights @ tensors["v"]
    loss = (y * y * tensors["g"]).sum()
    loss.backward()
    return y.detach().numpy(), {n: tensors[n].grad.numpy() for n in "qkv"}


@pytest.mark.parametrize("visible", ["k.t <= q.t", "q.t >= k.t", ""])
@pytest.mark.parametrize("keep", [KEEP, ""])
def test_forward_is_one_operation_and_equal(context, arrays, visible, keep):
    query = attention_sql(visible, keep) + "SELECT b, h, t, d, val FROM y"
    assert "1 attention" in context.explain(query)
    y, _ = reference(arrays, causal=bool(visible), dropped=bool(keep))
    np.testing.assert_allclose(context.sql(query).to_xarray().values, y, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("table", ["q", "k", "v"])
@pytest.mark.parametrize("visible", ["k.t <= q.t", ""])
@pytest.mark.parametrize("keep", [KEEP, ""])
def test_backward_is_fused_and_equal(context, arrays, table, visible, keep):
    query = attention_sql(visible, keep) + (
        f"SELECT {table}.b, {table}.h, {table}.t, {table}.d, grad(loss, {table}.val) AS val "
        f"FROM {table}"
    )
    assert f"result='d{table}'" in context.explain(query)
    _, gradients = reference(arrays, causal=bool(visible), dropped=bool(keep))
    result = context.sql(query).to_xarray().values
    np.testing.assert_allclose(result, gradients[table], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(
    "change",
    [
        {"visible": "k.t < q.t + 1 AND k.t <> 0"},
        {"shift": "0.5 * m.val"},
        {"keep": "dropout_keep(0.25, 7, 3, 2, e.b, e.h, e.j, e.i)"},
    ],
    ids=["another mask", "no maximum", "indices in another order"],
)
def test_what_is_not_attention_is_not_fused(context, change):
    query = attention_sql(**change) + "SELECT b, h, t, d, val FROM y"
    assert "attention" not in context.explain(query)


def test_equal_to_rows(context):
    query = attention_sql() + "SELECT b, h, t, d, val FROM y ORDER BY b, h, t, d"
    fused = context.sql(query, engine="compact").to_pandas()
    rows = context.sql(query, engine="rows").to_pandas()
    np.testing.assert_allclose(fused["val"], rows["val"], rtol=1e-12, atol=1e-14)

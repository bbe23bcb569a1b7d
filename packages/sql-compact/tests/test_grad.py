"""grad, vjp and jvp against PyTorch's autograd and finite differences, on small models."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from sql_compact import CompactContext, UnsupportedSQL
from sql_compact.autodiff import TracingBackend
from sql_compact.functions.dropout import dropout_keep_numpy
from sql_compact.precision import Precision
from sql_compact.tables import table_of_array
from sql_compact.tracing import Tracer

RNG = np.random.default_rng(5)
B, T, C, D, V, L, H = 2, 4, 3, 3, 5, 3, 2


def normal(*shape):
    return RNG.normal(size=shape) / 2


@dataclass(frozen=True)
class Model:
    """A loss twice: common tables ending in ``loss``, and a function of torch tensors."""

    ctes: str
    loss: Callable[[Mapping[str, torch.Tensor]], torch.Tensor]
    parameters: Mapping[str, tuple[str, ...]]
    data: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)

    def context(self, arrays=None):
        context = CompactContext()
        for name, dims in {**self.parameters, **self.data}.items():
            array = (arrays or self.arrays)[name]
            domain = V if array.dtype.kind == "i" else None
            context.register(name, array, dims=dims, domain=domain)
        return context


def _layer_norm(x, weight):
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0)
    return (x - mean) / torch.sqrt(variance + 1e-5) * weight


def _attention(a):
    q, k, v = (torch.einsum("btc,dc->btd", a["x"], a["w"][part]) for part in range(3))
    scores = torch.einsum("bid,bjd->bij", q, k) / np.sqrt(D)
    hidden = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)
    p = torch.softmax(scores.masked_fill(hidden, -np.inf), dim=-1)
    return (torch.einsum("bij,bjd->bid", p, v) ** 2).sum()


def _dropout(a):
    b, t, c = np.indices((B, T, C))
    keep = torch.as_tensor(dropout_keep_numpy(0.4, 11, 3, 2, b, t, c))
    return ((a["x"] * a["w"] * keep) ** 2).sum()


def _stacked(a):
    x = a["x"]
    for layer in range(L):
        x = torch.tanh(torch.einsum("bc,dc->bd", x, a["w"][layer])) + x
    return (x**2).mean()


def _cross_entropy(logits, targets):
    return torch.nn.functional.cross_entropy(logits.reshape(-1, V), targets.reshape(-1))


CROSS_ENTROPY = """
top AS (SELECT b, MAX(val) AS val FROM logits GROUP BY b),
z AS (SELECT l.b, SUM(exp(l.val - m.val)) AS val FROM logits l JOIN top m ON l.b = m.b
      GROUP BY l.b),
lse AS (SELECT z.b, ln(z.val) + m.val AS val FROM z JOIN top m ON z.b = m.b),
hit AS (SELECT y.b, l.val AS val FROM y JOIN logits l ON y.b = l.b AND y.val = l.v),
loss AS (SELECT AVG(s.val - h.val) AS val FROM lse s JOIN hit h ON s.b = h.b)"""

MODELS = {
    "linear regression": Model(
        """p AS (SELECT x.b, SUM(x.val * w.val) AS val FROM x JOIN w ON x.c = w.c GROUP BY x.b),
        loss AS (SELECT AVG(power(p.val - y.val, 2)) AS val FROM p JOIN y ON p.b = y.b)""",
        lambda a: ((a["x"] @ a["w"] - a["y"]) ** 2).mean(),
        {"w": ("c",)},
        {"x": ("b", "c"), "y": ("b",)},
        {"w": normal(C), "x": normal(B, C), "y": normal(B)},
    ),
    "MLP": Model(
        """h AS (SELECT x.b, w.d, SUM(x.val * w.val) AS val FROM x JOIN w ON x.c = w.c
               GROUP BY x.b, w.d),
        a AS (SELECT h.b, h.d, tanh(h.val + o.val) AS val FROM h JOIN o ON h.d = o.d),
        g AS (SELECT a.b, u.e, SUM(a.val * u.val) AS val FROM a JOIN u ON a.d = u.d
              GROUP BY a.b, u.e),
        r AS (SELECT b, e, CASE WHEN val > 0 THEN val ELSE 0.0 END AS val FROM g),
        loss AS (SELECT SUM(val * val * val) AS val FROM r)""",
        lambda a: (torch.relu(torch.tanh(a["x"] @ a["w"] + a["o"]) @ a["u"]) ** 3).sum(),
        {"w": ("c", "d"), "o": ("d",), "u": ("d", "e")},
        {"x": ("b", "c")},
        {"w": normal(C, D), "o": normal(D), "u": normal(D, V), "x": normal(B, C)},
    ),
    "softmax cross-entropy": Model(
        """logits AS (SELECT x.b, w.v, SUM(x.val * w.val) AS val FROM x JOIN w ON x.c = w.c
                      GROUP BY x.b, w.v),"""
        + CROSS_ENTROPY,
        lambda a: _cross_entropy(torch.einsum("bc,vc->bv", a["x"], a["w"]), a["y"]),
        {"w": ("v", "c"), "x": ("b", "c")},
        {"y": ("b",)},
        {"w": normal(V, C), "x": normal(7, C), "y": RNG.integers(0, V, 7)},
    ),
    "embedding of repeated tokens": Model(
        """e AS (SELECT k.b, k.t, w.c, w.val AS val FROM k JOIN w ON k.val = w.v),
        s AS (SELECT b, c, SUM(val * val) AS val FROM e GROUP BY b, c),
        loss AS (SELECT SUM(val * val) AS val FROM s)""",
        lambda a: ((a["w"][a["k"]] ** 2).sum(1) ** 2).sum(),
        {"w": ("v", "c")},
        {"k": ("b", "t")},
        {"w": normal(V, C), "k": np.array([[0, 1, 1, 1], [4, 0, 1, 4]])},
    ),
    "layer norm": Model(
        """m AS (SELECT b, AVG(val) AS val FROM x GROUP BY b),
        d AS (SELECT x.b, x.c, x.val - m.val AS val FROM x JOIN m ON x.b = m.b),
        s AS (SELECT b, AVG(val * val) AS val FROM d GROUP BY b),
        n AS (SELECT d.b, d.c, d.val / sqrt(s.val + 1e-5) * w.val AS val FROM d
              JOIN s ON d.b = s.b JOIN w ON d.c = w.c),
        loss AS (SELECT SUM(val * val * val) AS val FROM n)""",
        lambda a: (_layer_norm(a["x"], a["w"]) ** 3).sum(),
        {"w": ("c",), "x": ("b", "c")},
        arrays={"w": normal(C), "x": normal(B, C)},
    ),
    "causal attention": Model(
        """qkv AS (SELECT x.b, x.t, w.part, w.d, SUM(x.val * w.val) AS val FROM x
                   JOIN w ON x.c = w.c GROUP BY x.b, x.t, w.part, w.d),
        q AS (SELECT b, t, d, val FROM qkv WHERE part = 0),
        k AS (SELECT b, t, d, val FROM qkv WHERE part = 1),
        v AS (SELECT b, t, d, val FROM qkv WHERE part = 2),
        s AS (SELECT q.b, q.t AS i, k.t AS j, SUM(q.val * k.val) / sqrt(3.0) AS val
              FROM q JOIN k ON q.b = k.b AND q.d = k.d AND k.t <= q.t GROUP BY q.b, q.t, k.t),
        m AS (SELECT b, i, MAX(val) AS val FROM s GROUP BY b, i),
        e AS (SELECT s.b, s.i, s.j, exp(s.val - m.val) AS val FROM s
              JOIN m ON s.b = m.b AND s.i = m.i),
        z AS (SELECT b, i, SUM(val) AS val FROM e GROUP BY b, i),
        p AS (SELECT e.b, e.i, e.j, e.val / z.val AS val FROM e
              JOIN z ON e.b = z.b AND e.i = z.i),
        y AS (SELECT p.b, p.i, v.d, SUM(p.val * v.val) AS val FROM p
              JOIN v ON p.b = v.b AND p.j = v.t GROUP BY p.b, p.i, v.d),
        loss AS (SELECT SUM(val * val) AS val FROM y)""",
        _attention,
        {"w": ("part", "d", "c"), "x": ("b", "t", "c")},
        arrays={"w": normal(3, D, C), "x": normal(B, T, C)},
    ),
    "GELU by erf": Model(
        """g AS (SELECT b, c, 0.5 * val * (1.0 + erf(val / sqrt(2.0))) AS val FROM x),
        loss AS (SELECT SUM(val * val) AS val FROM g)""",
        lambda a: (torch.nn.functional.gelu(a["x"]) ** 2).sum(),
        {"x": ("b", "c")},
        arrays={"x": normal(B, C) * 4},
    ),
    "dropout": Model(
        """a AS (SELECT x.b, x.t, x.c,
                 x.val * w.val * dropout_keep(0.4, 11, 3, 2, x.b, x.t, x.c) AS val
                 FROM x JOIN w ON x.c = w.c),
        loss AS (SELECT SUM(val * val) AS val FROM a)""",
        _dropout,
        {"x": ("b", "t", "c"), "w": ("c",)},
        arrays={"x": normal(B, T, C), "w": normal(C)},
    ),
    "weights stacked over layers": Model(
        "".join(
            f"""h{n} AS (SELECT x.b, w.d, SUM(x.val * w.val) AS val FROM x{n} x
                 JOIN w ON x.c = w.c AND w.layer = {n} GROUP BY x.b, w.d),
            x{n + 1} AS (SELECT h.b, h.d AS c, tanh(h.val) + x.val AS val FROM h{n} h
                 JOIN x{n} x ON h.b = x.b AND h.d = x.c),"""
            for n in range(L)
        )
        + f"loss AS (SELECT AVG(val * val) AS val FROM x{L})",
        lambda a: _stacked({**a, "x": a["x0"]}),
        {"w": ("layer", "d", "c"), "x0": ("b", "c")},
        arrays={"w": normal(L, D, C), "x0": normal(B, C)},
    ),
    "tied weights": Model(
        """e AS (SELECT k.b, w.c, w.val AS val FROM k JOIN w ON k.val = w.v),
        logits AS (SELECT e.b, w.v, SUM(e.val * w.val) AS val FROM e JOIN w ON e.c = w.c
                   GROUP BY e.b, w.v),"""
        + CROSS_ENTROPY,
        lambda a: _cross_entropy(torch.einsum("bc,vc->bv", a["w"][a["k"]], a["w"]), a["y"]),
        {"w": ("v", "c")},
        {"k": ("b",), "y": ("b",)},
        {"w": normal(V, C), "k": np.array([0, 3, 3, 1]), "y": np.array([1, 3, 0, 0])},
    ),
}


def _tensors(model):
    return {
        name: torch.as_tensor(array).clone().requires_grad_(name in model.parameters)
        for name, array in model.arrays.items()
    }


def _scaled_error(value, expected):
    return np.abs(value - expected).max() / max(np.abs(expected).max(), 1e-30)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_gradients_are_those_of_autograd(model):
    tensors = _tensors(model)
    loss = model.loss(tensors)
    loss.backward()
    context = model.context()
    value = context.sql(f"WITH {model.ctes} SELECT val FROM loss").to_torch()["val"]
    assert float(value) == pytest.approx(loss.item(), rel=1e-12)
    for name, dims in model.parameters.items():
        sql = f"WITH {model.ctes} SELECT {', '.join(dims)}, grad(loss, val) AS g FROM {name}"
        gradient = context.sql(sql).to_xarray().transpose(*dims).values
        assert _scaled_error(gradient, tensors[name].grad.numpy()) < 1e-12


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_gradients_are_those_of_finite_differences(model):
    name, dims = next(iter(model.parameters.items()))
    direction = np.random.default_rng(1).normal(size=model.arrays[name].shape)
    sql = f"WITH {model.ctes} SELECT {', '.join(dims)}, grad(loss, val) AS g FROM {name}"
    gradient = model.context().sql(sql).to_xarray().transpose(*dims).values

    def loss_at(step):
        moved = {**model.arrays, name: model.arrays[name] + step * direction}
        return float(
            model.context(moved).sql(f"WITH {model.ctes} SELECT val FROM loss").to_torch()["val"]
        )

    slope = (loss_at(1e-6) - loss_at(-1e-6)) / 2e-6
    assert float((gradient * direction).sum()) == pytest.approx(slope, rel=1e-6, abs=1e-7)


# --- forward mode, cotangents, nesting ----------------------------------------------------

MLP = MODELS["MLP"]


def test_jvp_is_the_gradient_along_the_tangent():
    tensors = _tensors(MLP)
    tangent = np.random.default_rng(2).normal(size=MLP.arrays["w"].shape)
    MLP.loss(tensors).backward()
    context = MLP.context()
    context.register("dw", tangent, dims=("c", "d"))
    forward = MLP.ctes.rsplit("loss AS", 1)[0].rstrip().rstrip(",")
    result = context.sql(
        f"WITH {forward} SELECT SUM(val * val * val) AS l, "
        "jvp(SUM(val * val * val), w.val, dw) AS dl FROM r"
    ).to_torch()
    expected = (tensors["w"].grad.numpy() * tangent).sum()
    assert float(result["dl"]) == pytest.approx(expected, rel=1e-12)


def test_vjp_pulls_a_cotangent_back():
    tensors = _tensors(MLP)
    output = torch.tanh(tensors["x"] @ tensors["w"] + tensors["o"]) @ tensors["u"]
    cotangent = np.random.default_rng(3).normal(size=(B, V))
    output.backward(torch.as_tensor(cotangent))
    context = MLP.context()
    context.register("ct", cotangent, dims=("b", "e"))
    ctes = MLP.ctes.split("r AS", 1)[0].rstrip().rstrip(",")
    gradient = context.sql(f"WITH {ctes} SELECT c, d, vjp(g, val, ct) AS g FROM w").to_xarray()
    expected = tensors["w"].grad.numpy()
    assert _scaled_error(gradient.transpose("c", "d").values, expected) < 1e-12


def test_hessian_vector_product_by_nesting():
    weights = torch.as_tensor(normal(D)).requires_grad_()
    direction = np.random.default_rng(4).normal(size=D)

    def loss(w):
        return (torch.tanh(w) ** 2).sum() + (w**4).sum()

    context = CompactContext()
    context.register("w", weights.detach().numpy(), dims=("d",))
    context.register("v", direction, dims=("d",))
    product = context.sql(
        "WITH loss AS (SELECT SUM(tanh(val) * tanh(val) + val * val * val * val) AS val FROM w), "
        "g AS (SELECT w.d, grad(loss, w.val) AS val FROM w) "
        "SELECT d, val, jvp(val, w.val, v) AS hv FROM g"
    ).to_dataset()
    expected = torch.autograd.functional.hvp(loss, weights.detach(), torch.as_tensor(direction))[1]
    assert _scaled_error(product["hv"].values, expected.numpy()) < 1e-12


def test_an_update_in_one_statement():
    model = MODELS["linear regression"]
    tensors = _tensors(model)
    model.loss(tensors).backward()
    context = model.context()
    context.register("hyper", np.array(0.125), dims=(), column="lr")
    updated = context.sql(
        f"WITH {model.ctes} SELECT w.c, w.val - h.lr * grad(loss, w.val) AS val "
        "FROM w CROSS JOIN hyper h"
    ).to_xarray()
    expected = model.arrays["w"] - 0.125 * tensors["w"].grad.numpy()
    np.testing.assert_allclose(updated.values, expected, rtol=1e-12)


def test_no_gradient_flows_through_stop_gradient():
    context = CompactContext()
    context.register("w", np.array([2.0, 3.0]), dims=("d",))
    gradient = context.sql(
        "WITH loss AS (SELECT SUM(val * ddx_stop_gradient(val)) AS val FROM w) "
        "SELECT d, grad(loss, val) AS g FROM w"
    ).to_xarray()
    np.testing.assert_array_equal(gradient.values, [2.0, 3.0])


# --- size of the plan -------------------------------------------------------------------


def _steps(layers):
    """Queries that ddxdb stores for the gradient of a chain of layers, and nodes they fold to."""
    ctes = "".join(
        f"h{n + 1} AS (SELECT h.b, w.d AS c, tanh(SUM(h.val * w.val)) AS val FROM h{n} h "
        f"JOIN w ON h.c = w.c AND w.layer = {n} GROUP BY h.b, w.d), "
        for n in range(layers)
    )
    tables = {
        "h0": table_of_array("h0", normal(B, C), ("b", "c"), "val", None, None),
        "w": table_of_array("w", normal(layers, C, C), ("layer", "d", "c"), "val", None, None),
    }
    tracer = Tracer(tables, Precision.FLOAT64)
    counted = []

    class Counting(TracingBackend):
        def materialize(self, name, plan):
            counted.append(name)
            super().materialize(name, plan)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sql_compact.tracing.TracingBackend", Counting)
        tracer.trace(
            f"WITH {ctes}loss AS (SELECT SUM(val * val) AS val FROM h{layers}) "
            "SELECT layer, d, c, grad(loss, val) AS g FROM w"
        )
    return len(counted), len(tracer.builder.graph.nodes)


def test_planning_is_linear_in_layers():
    counts = {layers: _steps(layers) for layers in (1, 2, 4, 8)}
    for i, what in enumerate(("steps", "nodes")):
        per_layer = counts[2][i] - counts[1][i]
        assert per_layer > 0
        for layers, found in counts.items():
            assert found[i] <= counts[1][i] + (layers - 1) * (per_layer + 1), (what, counts)


# --- what cannot be differentiated -------------------------------------------------------

BAD = {
    "of rows": ("l AS (SELECT d, val FROM w)", "grad(l, val)", "derivative.*NotScalar"),
    "of an integer": ("l AS (SELECT SUM(val) AS s FROM w)", "grad(l, n)", "derivative"),
    "without a rule": (
        "l AS (SELECT SUM(val % 2.0) AS s FROM w)",
        "grad(l, val)",
        "derivative.*UnsupportedExpression",
    ),
    "of a column it does not read": (
        "l AS (SELECT SUM(other) AS s FROM w)",
        "grad(l, d)",
        "derivative",
    ),
}


@pytest.mark.parametrize(("cte", "call", "message"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_differentiated_is_named(cte, call, message):
    import xarray as xr

    context = CompactContext()
    values = {"val": ("d", np.ones(2)), "other": ("d", np.ones(2)), "n": ("d", np.ones(2, int))}
    context.register("w", xr.Dataset(values))
    with pytest.raises(UnsupportedSQL, match=message):
        context.sql(f"WITH {cte} SELECT d, {call} AS g FROM w")

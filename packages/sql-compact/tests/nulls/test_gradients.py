"""Derivatives of queries over tables with NULLs and masks."""

import numpy as np
import pytest
import torch
from sql_compact import CompactContext

W = np.array([0.5, -1.5, 2.0, 1.0])
WEIGHTS = np.array([1.0, 2.0, 3.0, 4.0])


@pytest.fixture
def ctx():
    ctx = CompactContext()
    ctx.register("w", np.ma.array(W, mask=[False, True, False, False]), dims=("i",))
    ctx.register("c", np.ma.array(WEIGHTS, mask=[False, False, True, False]), dims=("i",))
    return ctx


def test_null_parameters_and_null_terms(ctx):
    sql = """
        WITH loss AS (SELECT SUM(w.val * w.val * c.val) AS l FROM w JOIN c ON w.i = c.i)
        SELECT i, grad(loss, w.val) AS g FROM w ORDER BY i
    """
    gradient = ctx.sql(sql).to_arrow().column("g").to_pylist()
    # Row 1 is NULL itself; row 2's term is NULL; the others contribute 2 w c.
    assert gradient == [2 * W[0] * 1.0, None, 0.0, 2 * W[3] * 4.0]


def test_rows_no_loss_reads_have_exactly_zero(ctx):
    sql = """
        WITH loss AS (SELECT SUM(val * val * val) AS l FROM w WHERE i < 1)
        SELECT i, grad(loss, w.val) AS g FROM w ORDER BY i
    """
    assert ctx.sql(sql).to_arrow().column("g").to_pylist() == [3 * W[0] ** 2, None, 0.0, 0.0]


def test_against_finite_differences_and_autograd():
    rng = np.random.default_rng(2)
    weights, data = rng.normal(size=5), rng.normal(size=(7, 5))
    mask = rng.random((7, 5)) < 0.3
    ctx = CompactContext()
    ctx.register("x", np.ma.array(data, mask=mask), dims=("n", "i"))
    loss = """
        WITH y AS (SELECT x.n, SUM(x.val * w.val) AS s FROM x JOIN w ON x.i = w.i GROUP BY x.n),
        loss AS (SELECT AVG(s * s * s) AS l FROM y)
    """

    def value(at):
        ctx.register("w", at, dims=("i",))
        return float(ctx.sql(loss + "SELECT l FROM loss").to_xarray())

    steps = 1e-5 * np.eye(5)
    expected = [(value(weights + h) - value(weights - h)) / 2e-5 for h in steps]
    ctx.register("w", weights, dims=("i",))
    gradient = ctx.sql(loss + "SELECT i, grad(loss, w.val) AS g FROM w").to_xarray().values
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-8)
    leaf = torch.tensor(weights, requires_grad=True)
    rows = (torch.where(torch.from_numpy(mask), 0.0, torch.from_numpy(data)) * leaf).sum(1)
    rows[torch.from_numpy(~mask.all(1))].pow(3).mean().backward()
    np.testing.assert_allclose(gradient, leaf.grad.numpy(), rtol=1e-12)


def test_hessian_vector_products_by_nesting():
    weights, direction = np.array([0.3, -0.7, 1.1]), np.array([1.0, 2.0, -1.0])
    ctx = CompactContext()
    ctx.register("w", weights, dims=("i",))
    ctx.register("v", direction, dims=("i",))
    sql = """
        WITH loss AS (SELECT SUM(val * val * val) AS l FROM w),
        g AS (SELECT i, grad(loss, w.val) AS g FROM w)
        SELECT g.i, jvp(g.g, w.val, v) AS h FROM g
    """
    np.testing.assert_allclose(ctx.sql(sql).to_xarray().values, 6 * weights * direction, rtol=1e-14)


def test_a_quotient_of_integers_is_a_double():
    """A count under a literal is divided in float64, not in torch's default type."""
    ctx = CompactContext()
    ctx.register("w", np.ma.array(np.ones(7), mask=np.zeros(7)), dims=("i",))
    sql = "WITH loss AS (SELECT AVG(val) AS l FROM w) SELECT i, grad(loss, w.val) AS g FROM w"
    assert ctx.sql(sql).to_xarray().values.tolist() == [1 / 7] * 7


def test_jvp_leaves_null_terms_and_null_parameters_out(ctx):
    direction = np.array([1.0, 5.0, 7.0, -2.0])
    ctx.register("u", direction, dims=("i",))
    sql = """
        SELECT jvp(SUM(w.val * w.val * c.val), w.val, u) AS d
        FROM w JOIN c ON w.i = c.i
    """
    expected = 2 * W[0] * 1.0 * direction[0] + 2 * W[3] * 4.0 * direction[3]
    assert float(ctx.sql(sql).to_xarray()) == pytest.approx(expected, rel=1e-14)


def test_vjp_of_masked_rows(ctx):
    cotangent = np.array([3.0, 1.0, 2.0, -1.0])
    ctx.register("ct", cotangent, dims=("i",), column="v")
    sql = """
        WITH y AS (SELECT w.i, SUM(w.val * w.val * c.val) AS v FROM w JOIN c ON w.i = c.i
            WHERE w.i < 3 GROUP BY w.i)
        SELECT i, vjp(y, val, ct) AS g FROM w ORDER BY i
    """
    gradient = ctx.sql(sql).to_arrow().column("g").to_pylist()
    # Row 1 is NULL itself, row 2's factor is NULL, no row of y reads row 3.
    assert gradient == [2 * W[0] * cotangent[0], None, 0.0, 0.0]


def test_hessian_vector_products_with_nulls(ctx):
    direction = np.array([1.0, 5.0, 7.0, -2.0])
    ctx.register("u", direction, dims=("i",))
    sql = """
        WITH loss AS (SELECT SUM(w.val * w.val * w.val * c.val) AS l FROM w JOIN c ON w.i = c.i),
        g AS (SELECT i, grad(loss, w.val) AS g FROM w)
        SELECT g.i, jvp(g.g, w.val, u) AS h FROM g ORDER BY i
    """
    found = ctx.sql(sql).to_arrow().column("h").to_pylist()
    assert found[0] == pytest.approx(6 * W[0] * direction[0], rel=1e-14)
    assert found[3] == pytest.approx(6 * W[3] * 4.0 * direction[3], rel=1e-14)
    assert found[2] in (0.0, None)
    assert found[1] is None


def test_a_mask_by_value_lets_no_gradient_through():
    values = np.array([0.5, -1.0, 2.0, np.nan])
    ctx = CompactContext()
    ctx.register("w", values, dims=("i",))
    sql = """
        WITH loss AS (SELECT SUM(val * val) AS l FROM w WHERE val > 0 AND i < 3)
        SELECT i, grad(loss, w.val) AS g FROM w ORDER BY i
    """
    assert ctx.sql(sql).to_arrow().column("g").to_pylist() == [1.0, 0.0, 4.0, 0.0]

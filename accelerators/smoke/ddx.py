"""Proves that the installed ddx does what sql-compact needs of it; exits with 1 where it does not.

Run by `accelerators/build.py ddx` in a throwaway environment, through ddx's public interface.
"""

from __future__ import annotations

import sys

import ddxdb
import pyarrow as pa
from ddxdb import ad

_LAYERS = (1, 2, 4)
_VALUES = (1.0, -2.0, 0.5)
_DIRECTION = (0.5, 1.0, -2.0)


class SmokeFailure(Exception):
    """What ddx computed is not what calculus says."""


def _expect(what: str, got: list[float], expected: list[float]) -> None:
    # Compared with the number of rows; all figures are of order one, so one bound fits them.
    close = len(got) == len(expected) and all(
        abs(a - b) <= 1e-12 for a, b in zip(got, expected, strict=True)
    )
    if not close:
        raise SmokeFailure(f"{what}: expected {expected}, got {got}")
    print(f"ok: {what}")


def _context() -> ddxdb.Context:
    """A context with the table w(i, val)."""
    ctx = ddxdb.Context()
    ad.register_stop_gradient(ctx)
    rows = pa.RecordBatch.from_pydict({"i": list(range(len(_VALUES))), "val": list(_VALUES)})
    ctx.register_record_batches("w", [[rows]])
    return ctx


def check_gradient() -> None:
    """d/dw sum(w^3) = 3 w^2, asked for in SQL."""
    table = (
        _context()
        .sql(
            "WITH f AS (SELECT SUM(val * val * val) AS l FROM w) "
            "SELECT i, grad(f, w.val) AS g FROM w ORDER BY i"
        )
        .to_arrow_table()
    )
    _expect("gradient", table["g"].to_pylist(), [3 * w * w for w in _VALUES])


def check_hessian_vector_product() -> None:
    """The tangent of the gradient along v: d/dt 3 (w + t v)^2 at t = 0 is 6 w v."""
    ctx = _context()
    gradient = ad.grad(ctx, "SELECT SUM(val * val * val) AS l FROM w", "w.val")
    product = ad.jvp(ctx, gradient, "w.val")
    tangent = pa.table({"i": list(range(len(_VALUES))), "val": list(_DIRECTION)})
    table = ad.run(ctx, product, [tangent]).gradients[0].sort("i").to_arrow_table()
    expected = [6 * w * v for w, v in zip(_VALUES, _DIRECTION, strict=True)]
    _expect("Hessian-vector product", table["val_tangent"].to_pylist(), expected)


def check_stop_gradient() -> None:
    """d/dw sum(sg(w) w) = w: the stopped factor counts as a constant."""
    table = (
        _context()
        .sql(
            "WITH f AS (SELECT SUM(ddx_stop_gradient(val) * val) AS l FROM w) "
            "SELECT i, grad(f, w.val) AS g FROM w ORDER BY i"
        )
        .to_arrow_table()
    )
    _expect("stop-gradient", table["g"].to_pylist(), list(_VALUES))


class CountingBackend(ad.DataFusionBackend):
    """DataFusion as ddx's engine, counting what ddx asks of it."""

    def __init__(self, ctx: ddxdb.Context) -> None:
        super().__init__(ctx)
        self.steps = 0
        self.cte_tables = 0
        self.planned_bytes = 0

    def materialize(self, name: str, plan: bytes) -> None:
        super().materialize(name, plan)
        if "_cte_" in name:
            self.cte_tables += 1
        else:
            self.steps += 1

    def plan_sql(self, sql: str) -> bytes:
        plan = super().plan_sql(sql)
        self.planned_bytes += len(plan)
        return plan


def _chain(layers: int) -> str:
    """A gradient through `layers` CTEs, each of which reads the one before it twice."""
    ctes = ["x0 AS (SELECT i, val FROM w)"]
    for k in range(1, layers + 1):
        ctes.append(
            f"s{k} AS (SELECT SUM(val * val) AS total FROM x{k - 1}), "
            f"x{k} AS (SELECT x.i, x.val / sqrt(1.0 + s.total) AS val "
            f"FROM x{k - 1} x CROSS JOIN s{k} s)"
        )
    ctes.append(f"f AS (SELECT SUM(val) AS l FROM x{layers})")
    return f"WITH {', '.join(ctes)} SELECT i, grad(f, w.val) AS g FROM w"


def check_planning(backend_class: type[CountingBackend] = CountingBackend) -> None:
    """Each CTE is planned by itself, so that steps and plans grow linearly in the layers.

    Where ddx plans a whole statement at once instead, every CTE is inlined wherever it is read,
    and the plan of a chain whose layers read the one before twice doubles with each layer.
    """
    counted = []
    for layers in _LAYERS:
        backend = backend_class(_context())
        ddxdb.rewrite(backend, [_chain(layers)], "datafusion", ddxdb.Programs()).release()
        counted.append(backend)
    steps = [backend.steps for backend in counted]
    ctes = [backend.cte_tables for backend in counted]
    planned = [backend.planned_bytes for backend in counted]
    figures = f"{_LAYERS} layers: {steps} steps, {ctes} CTEs alone, {planned} bytes planned"
    # From 2 to 4 layers there are twice as many new layers as from 1 to 2.
    for one, two, four in (steps, ctes, planned):
        if not 0 < four - two <= 2.2 * (two - one):
            raise SmokeFailure(f"planning is not linear; {figures}")
    print(f"ok: planning is linear; {figures}")


def main() -> int:
    try:
        check_gradient()
        check_hessian_vector_product()
        check_stop_gradient()
        check_planning()
    except SmokeFailure as failure:
        print(failure)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Which engine runs a query: chosen, named before running, never silent."""

import threading
import warnings

import numpy as np
import pytest
from sql_compact import (
    BudgetError,
    CompactContext,
    InvalidSQL,
    QueryFailed,
    RowEngineWarning,
    UnsupportedSQL,
)

UNFOLDED = {
    "median": ("SELECT lat, MEDIAN(temp) AS m FROM air GROUP BY lat", "MEDIAN"),
    "running window": (
        "SELECT time, lat, lon, SUM(temp) OVER (PARTITION BY lat, lon ORDER BY time) AS s FROM air",
        "OVER",
    ),
    "group by a value": ("SELECT FLOOR(temp) AS f, COUNT(*) AS c FROM air GROUP BY 1", "GROUP BY"),
    "text of a value": ("SELECT time, CAST(temp AS TEXT) AS t FROM air", "CAST"),
    "distinct in an aggregate": (
        "SELECT lat, SUM(DISTINCT temp) AS s, COUNT(*) AS c FROM air GROUP BY lat",
        "DISTINCT",
    ),
    "grouping sets": (
        "SELECT lat, lon, SUM(temp) AS s FROM air GROUP BY ROLLUP (lat, lon)",
        "GROUPING SETS",
    ),
}


@pytest.mark.parametrize(("sql", "operator"), UNFOLDED.values(), ids=UNFOLDED.keys())
def test_auto_warns_and_gives_the_rows(weather, sql, operator):
    with pytest.raises(UnsupportedSQL, match=operator):
        weather.sql(sql, engine="compact")
    with pytest.warns(RowEngineWarning, match=operator) as caught:
        result = weather.sql(sql)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert result.engine == "rows"
    assert result.to_arrow().num_rows > 0
    assert weather.explain(sql).startswith("engine: rows (DataFusion), because ")


def test_a_folded_query_does_not_warn(weather):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = weather.sql("SELECT lat, AVG(temp) AS t FROM air GROUP BY lat")
    assert result.engine == "compact"
    assert weather.explain("SELECT AVG(temp) AS t FROM air").startswith("engine: compact")


def test_rows_when_asked(weather):
    sql = "SELECT lat, AVG(temp) AS t FROM air GROUP BY lat"
    result = weather.sql(sql, engine="rows")
    assert result.engine == "rows"
    np.testing.assert_allclose(result.to_xarray(), weather.sql(sql).to_xarray(), rtol=1e-12)
    assert "was asked for" in weather.explain(sql, engine="rows")


@pytest.mark.parametrize("engine", ["compact", "rows"])
@pytest.mark.parametrize("value", ["3.5", "NULL", "'text'"])
def test_one_value_without_dims(weather, engine, value):
    result = weather.sql(f"SELECT {value} AS a, 1 AS one", engine=engine)
    dataset = result.to_dataset()
    assert (dataset["a"].shape, int(dataset["one"])) == ((), 1)
    if value == "3.5":
        assert result.to_torch()["a"].item() == 3.5


def test_explain_compact_raises(weather):
    with pytest.raises(UnsupportedSQL, match="MEDIAN"):
        weather.explain("SELECT MEDIAN(temp) AS m FROM air", engine="compact")


def test_unknown_engine(weather):
    with pytest.raises(InvalidSQL, match="choose one of auto, compact, rows"):
        weather.sql("SELECT 1 AS one", engine="fast")


@pytest.mark.parametrize("engine", ["auto", "rows"])
def test_derivatives_never_run_on_rows(engine):
    ctx = CompactContext()
    ctx.register("w", np.arange(3.0), dims=("i",))
    sql = "WITH loss AS (SELECT MEDIAN(val) AS l FROM w) SELECT i, grad(loss, w.val) AS g FROM w"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UnsupportedSQL):
            ctx.sql(sql, engine=engine)


def test_a_failure_on_rows_is_typed():
    ctx = CompactContext()
    ctx.register("x", np.array([1, 0]), dims=("i",))
    with pytest.raises(QueryFailed, match=r"[Dd]ivide"):
        ctx.sql("SELECT 1 / val AS q FROM x", engine="rows")


def test_a_result_is_a_snapshot_and_a_query_sees_the_present():
    array = np.arange(4.0)
    ctx = CompactContext()
    ctx.register("x", array, dims=("i",))
    before = ctx.sql("SELECT i, val FROM x")
    total = ctx.sql("SELECT SUM(val) AS s FROM x")
    array[:] = 10.0
    assert before.to_pandas()["val"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert float(total.to_xarray()) == 6.0
    assert float(ctx.sql("SELECT SUM(val) AS s FROM x").to_xarray()) == 40.0
    ctx.register("x", np.ones(2), dims=("i",))
    assert float(ctx.sql("SELECT SUM(val) AS s FROM x").to_xarray()) == 2.0


def test_budget_is_checked_before_anything_is_read():
    class Untouchable:
        shape, dtype = (1000, 1000), np.dtype("float64")

        @property
        def values(self):
            raise AssertionError("read")

    ctx = CompactContext(memory_budget=50 << 20)
    ctx.register("x", Untouchable(), dims=("i", "j"))
    outer = "SELECT a.i, b.i AS k, a.j, a.val * b.val AS p FROM x a JOIN x b ON a.j = b.j"
    with pytest.raises(BudgetError, match=r"7\.\d* GiB.*memory_budget=50 MiB"):
        ctx.sql(outer)
    assert "budget 50 MiB" in ctx.explain("SELECT SUM(val) AS s FROM x")
    with pytest.raises(AssertionError, match="read"):
        ctx.sql("SELECT i, SUM(val) AS s FROM x GROUP BY i")


def test_budget_admits_a_contraction_without_its_product():
    ctx = CompactContext(memory_budget=40 << 20)
    ctx.register("x", np.ones((800, 500)), dims=("i", "j"))
    sql = (
        "SELECT a.i, b.i AS k, SUM(a.val * b.val) AS p FROM x a JOIN x b ON a.j = b.j GROUP BY 1, 2"
    )
    assert float(ctx.sql(sql).to_xarray()[3, 4]) == 500.0


def test_concurrent_queries_while_tables_change():
    ctx = CompactContext()
    ctx.register("fixed", np.arange(20.0), dims=("i",))
    ctx.register("moving", np.zeros((3, 5)), dims=("i", "j"))
    failures = []

    def query(n):
        try:
            for k in range(6):
                total = ctx.sql(f"SELECT SUM(val) + {k % 3} AS s FROM fixed").to_xarray()
                assert float(total) == 190.0 + k % 3
                moved = ctx.sql("SELECT i, SUM(val) AS s FROM moving GROUP BY i").to_pandas()
                assert moved["s"].nunique() == 1
        except Exception as error:
            failures.append(error)

    def change():
        for k in range(12):
            ctx.register("moving", np.full((3, 2 + k), float(k)), dims=("i", "j"))
            ctx.register(f"other{k}", np.zeros(2), dims=("i",))

    threads = [threading.Thread(target=query, args=(n,)) for n in range(4)]
    threads.append(threading.Thread(target=change))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures

"""NULLs that come with the data: masks, missing values, missing keys."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from sql_compact import CompactContext, DomainError, ShapeError

QUERIES = {
    "all": "SELECT * FROM m",
    "aggregates": (
        "SELECT i, COUNT(*) AS r, COUNT(val) AS c, SUM(val) AS s, AVG(val) AS a, MIN(val) AS l, "
        "MAX(val) AS h, STDDEV(val) AS d, VAR_POP(val) AS v FROM m GROUP BY i"
    ),
    "no groups": "SELECT COUNT(*) AS r, COUNT(val) AS c, SUM(val) AS s, AVG(val) AS a FROM m",
    "nothing": "SELECT SUM(val) AS s, COUNT(val) AS c FROM m WHERE val > 1e9",
    "arithmetic": "SELECT i, j, val * 2 + 1 AS v FROM m",
    "comparison": "SELECT i, j FROM m WHERE val > 0",
    "negated": "SELECT i, j FROM m WHERE NOT (val > 0)",
    "is null": "SELECT i, j, val IS NULL AS n FROM m",
    "where null": "SELECT i, j FROM m WHERE val IS NULL",
    "coalesce": "SELECT i, j, COALESCE(val, -1) AS v FROM m",
    "case": "SELECT i, j, CASE WHEN val > 0 THEN 1 WHEN val <= 0 THEN 2 END AS v FROM m",
    "filter": "SELECT i, SUM(val) FILTER (WHERE j > 0) AS s FROM m GROUP BY i",
    "product": (
        "SELECT a.i, b.i AS k, SUM(a.val * b.val) AS s FROM m a JOIN m b ON a.j = b.j GROUP BY 1, 2"
    ),
    "left join": "SELECT a.i, a.j, b.val AS w FROM m a LEFT JOIN m b ON a.i = b.j AND a.j = b.i",
    "window": "SELECT i, j, val - AVG(val) OVER (PARTITION BY i) AS d FROM m",
    "union": "SELECT SUM(val) AS s FROM (SELECT val FROM m UNION ALL SELECT val FROM m WHERE i = 0) q",  # noqa: E501
    "ordered": "SELECT i, j, val FROM m ORDER BY val DESC NULLS LAST, i, j",
    "group by sign": "SELECT val > 0 AS p, COUNT(*) AS c FROM m GROUP BY 1",
    "in": "SELECT i, j, val IN (1, 2, NULL) AS b FROM m",
    "distinct from": "SELECT i, j FROM m WHERE val IS DISTINCT FROM 1",
}

DATA = np.array([[1.0, -2.0, 3.5], [np.nan, 0.0, 7.0], [4.0, 4.0, -1.0]])
MASK = np.array([[True, False, False], [True, True, True], [False, True, False]])


def _masked():
    ctx = CompactContext()
    ctx.register("m", np.ma.array(DATA, mask=MASK), dims=("i", "j"))
    return ctx


def _valid():
    ctx = CompactContext()
    ctx.register("m", DATA, dims=("i", "j"), valid=~MASK)
    return ctx


def _missing():
    ctx = CompactContext()
    data = xr.DataArray(np.where(MASK, np.nan, DATA), dims=("i", "j"))
    ctx.register("m", data.assign_coords(i=[0, 1, 2], j=[0, 1, 2]), nan_is_null=True)
    return ctx


@pytest.mark.parametrize("make", [_masked, _valid, _missing])
@pytest.mark.parametrize("sql", QUERIES.values(), ids=QUERIES.keys())
def test_agrees(agree, make, sql):
    agree(make(), sql)


def test_three_ways_are_one():
    tables = [
        f().sql("SELECT i, j, val FROM m ORDER BY i, j").to_arrow()
        for f in (_masked, _valid, _missing)
    ]
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])
    assert tables[0].column("val").null_count == MASK.sum()


def test_nan_is_a_value_unless_told_otherwise(agree):
    ctx = CompactContext()
    ctx.register("v", np.array([1.0, np.nan]), dims=("i",))
    ctx.register("n", np.array([1.0, np.nan]), dims=("i",), nan_is_null=True)
    assert np.isnan(float(ctx.sql("SELECT SUM(val) AS s FROM v").to_xarray()))
    assert float(ctx.sql("SELECT SUM(val) AS s FROM n").to_xarray()) == 1.0
    for table in ("v", "n"):
        agree(ctx, f"SELECT COUNT(val) AS c, SUM(val) AS s, MAX(val) AS h FROM {table}")


@pytest.mark.parametrize(
    "array",
    [
        pd.array([3, None, 5, None], dtype="Int64"),
        pd.array([True, None, False, None], dtype="boolean"),
        pd.array([0.5, None, 1.5, None], dtype="Float64"),
        pd.Series([1, None, 2, None], dtype="UInt8"),
    ],
    ids=lambda a: str(a.dtype),
)
def test_pandas_nullable(agree, array):
    ctx = CompactContext()
    ctx.register("p", array, dims=("i",))
    agree(ctx, "SELECT i, val FROM p")
    agree(ctx, "SELECT COUNT(val) AS c, COUNT(*) AS r, MIN(val) AS l FROM p")


def test_integers_of_a_domain_with_nulls(agree):
    ctx = CompactContext()
    codes = np.ma.array([0, 2, -99, 1, 2], mask=[0, 0, 1, 0, 0])
    ctx.register("x", codes, dims=("i",), column="k", domain=3)
    ctx.register("w", np.array([10.0, 20.0, 30.0]), dims=("k",))
    agree(ctx, "SELECT k, COUNT(*) AS c FROM x GROUP BY k")
    agree(ctx, "SELECT x.i, w.val FROM x JOIN w ON x.k = w.k")
    agree(ctx, "SELECT x.i, w.val FROM x LEFT JOIN w ON x.k = w.k")
    agree(ctx, "SELECT a.i, b.i AS j FROM x a JOIN x b ON a.k IS NOT DISTINCT FROM b.k")
    agree(ctx, "SELECT i, k + 1 AS n FROM x WHERE k IS NOT NULL")
    agree(ctx, "SELECT k % 2 AS odd, COUNT(*) AS c FROM x GROUP BY 1")


KEYED = {
    "rows": "SELECT * FROM t",
    "group": "SELECT key, COUNT(*) AS c, SUM(val) AS s FROM t GROUP BY key",
    "is null": "SELECT val FROM t WHERE key IS NULL",
    "join": "SELECT a.val, b.val AS w FROM t a JOIN t b ON a.key = b.key",
    "join of nulls": "SELECT a.val, b.val AS w FROM t a JOIN t b ON a.key IS NOT DISTINCT FROM b.key",  # noqa: E501
    "left join": "SELECT a.val, b.val AS w FROM t a LEFT JOIN t b ON a.key = b.key AND b.val > 1",
    "count": "SELECT COUNT(key) AS c, COUNT(*) AS r, COUNT(DISTINCT key) AS d FROM t",
    "order": "SELECT key, val FROM t ORDER BY key, val",
}
KEYS = {
    "text": np.array(["b", None, "a", "b", None], dtype=object),
    "dates": np.array(
        ["2024-01-02", "NaT", "2024-01-01", "2024-01-02", "NaT"], dtype="datetime64[ns]"
    ),
    "floats": np.array([1.5, np.nan, -0.0, 0.0, np.nan]),
    "repeated integers": np.array([3, 3, 1, 2, 1]),
}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS.keys())
@pytest.mark.parametrize("sql", KEYED.values(), ids=KEYED.keys())
def test_keys_with_nulls_and_repeats(agree, keys, sql):
    ctx = CompactContext()
    ctx.register("t", np.arange(5.0), dims=("key",), coords={"key": keys}, nan_is_null=True)
    agree(ctx, sql)


def test_a_nan_key_is_refused_unless_it_is_null():
    with pytest.raises(DomainError, match="nan_is_null=True"):
        CompactContext().register("t", np.zeros(2), dims=("k",), coords={"k": [1.0, np.nan]})


def test_a_mask_has_the_shape_of_its_array():
    with pytest.raises(ShapeError, match="valid="):
        CompactContext().register("t", np.zeros(2), dims=("k",), valid=np.ones(3, bool))


def test_all_null_and_none_null(agree):
    ctx = CompactContext()
    for name, mask in (("all", True), ("none", False)):
        ctx.register(name, np.ma.array(np.arange(4.0), mask=np.full(4, mask)), dims=("i",))
        agree(ctx, f'SELECT SUM(val) AS s, COUNT(val) AS c, MAX(val) AS h FROM "{name}"')
        agree(ctx, f'SELECT i, AVG(val) AS a FROM "{name}" GROUP BY i')


def test_a_mask_changed_later_is_seen_by_later_queries():
    array = np.ma.array(np.arange(3.0), mask=[False, False, False])
    ctx = CompactContext()
    ctx.register("x", array, dims=("i",))
    sql = "SELECT COUNT(val) AS c FROM x"
    assert int(ctx.sql(sql).to_xarray()) == 3
    array[1] = np.ma.masked
    assert int(ctx.sql(sql).to_xarray()) == 2

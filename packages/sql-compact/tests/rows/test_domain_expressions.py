"""Expressions of one coordinate: DataFusion's own, but once for each value of the domain."""

import numpy as np
import pytest
from sql_compact import CompactContext, RowEngineWarning

QUERIES = {
    "month": "SELECT date_part('month', time) AS m, AVG(temp) AS t FROM air GROUP BY 1",
    "extract": "SELECT EXTRACT(year FROM time) AS y, COUNT(*) AS c FROM air GROUP BY 1",
    "year and month": (
        "SELECT EXTRACT(year FROM time) AS y, EXTRACT(month FROM time) AS m, SUM(temp) AS s "
        "FROM air GROUP BY 1, 2"
    ),
    "truncated": "SELECT date_trunc('quarter', time) AS q, MAX(temp) AS t FROM air GROUP BY 1",
    "text of a date": "SELECT to_char(time, '%Y-%m') AS m, COUNT(*) AS c FROM air GROUP BY 1",
    "date": "SELECT CAST(time AS DATE) AS d, COUNT(*) AS c FROM air GROUP BY 1",
    "sign of latitude": "SELECT lat > 0 AS north, AVG(temp) AS t FROM air GROUP BY 1",
    "boxes": "SELECT FLOOR(lon / 10) AS box, AVG(temp) AS t FROM air GROUP BY 1",
    "boxes of both": (
        "SELECT FLOOR(lon / 10) AS x, FLOOR(lat / 30) AS y, COUNT(*) AS c FROM air GROUP BY 1, 2"
    ),
    "case": (
        "SELECT CASE WHEN lat < 0 THEN 'south' WHEN lat > 0 THEN 'north' END AS half, "
        "AVG(temp) AS t FROM air GROUP BY 1"
    ),
    "of a bounded column": "SELECT kind % 2 AS odd, COUNT(*) AS c FROM air GROUP BY 1",
    "integer division": "SELECT kind / 2 AS pair, COUNT(*) AS c FROM air GROUP BY 1",
    "text of a bounded column": "SELECT CAST(kind AS TEXT) AS k, COUNT(*) AS c FROM air GROUP BY 1",
    "null in places": "SELECT NULLIF(kind, 2) + 1 AS k, COUNT(*) AS c FROM air GROUP BY 1",
    "coalesced null": "SELECT COALESCE(NULLIF(kind, 2), 7) % 4 AS k, COUNT(*) AS c FROM air GROUP BY 1",  # noqa: E501
    "filter": "SELECT time, lat, lon, temp FROM air WHERE date_part('month', time) IN (12, 1, 2)",
    "filter by text of date": "SELECT time, temp FROM air WHERE to_char(time, '%m') = '07' AND lat = 0",  # noqa: E501
    "day of week": "SELECT time, lat, lon FROM air WHERE date_part('dow', time) = 1",
    "projected": "SELECT time, lat, lon, temp * date_part('month', time) AS x FROM air",
    "year later": "SELECT time + INTERVAL '1 year 2 days' AS later, lat, lon FROM air",
    "like": "SELECT * FROM city WHERE name LIKE 'B%'",
    "ilike": "SELECT * FROM city WHERE name ILIKE '%O%'",
    "not like": "SELECT * FROM city WHERE name NOT LIKE '_o%'",
    "escaped": "SELECT * FROM city WHERE name LIKE 'B\\_%'",
    "text functions": (
        "SELECT upper(name) AS u, length(name) AS n, substr(name, 2, 2) AS s, name || '!' AS x, "
        "people FROM city"
    ),
    "first letter": "SELECT substr(name, 1, 1) AS f, SUM(people) AS p FROM city GROUP BY 1",
    "text order": "SELECT * FROM city WHERE name BETWEEN 'Bm' AND 'M'",
    "text case": "SELECT CASE WHEN name < 'C' THEN 'early' ELSE 'late' END AS w, people FROM city",
    "calendar join": (
        "SELECT a.time, a.lat, a.lon, a.temp - s.warm AS d FROM air a "
        "JOIN season s ON date_part('month', a.time) = s.m"
    ),
    "last year": (
        "SELECT a.time, a.lat, a.lon, a.temp - b.temp AS d FROM air a JOIN air b "
        "ON a.time = b.time + INTERVAL '360 days' AND a.lat = b.lat AND a.lon = b.lon"
    ),
    "previous": (
        "SELECT a.lat, SUM(a.temp * b.temp) AS s FROM air a JOIN air b "
        "ON a.time = b.time + INTERVAL '9 days' AND a.lat = b.lat AND a.lon = b.lon GROUP BY a.lat"
    ),
    "left, previous": (
        "SELECT a.time, a.lat, a.lon, b.temp FROM air a LEFT JOIN air b "
        "ON a.time = b.time + INTERVAL '9 days' AND a.lat = b.lat AND a.lon = b.lon"
    ),
    "window by month": (
        "SELECT time, lat, lon, temp - AVG(temp) OVER (PARTITION BY date_part('month', time), lat, "
        "lon) AS anomaly FROM air"
    ),
    "having": (
        "SELECT date_part('month', time) AS m, AVG(temp) AS t FROM air GROUP BY 1 "
        "HAVING date_part('month', time) > 6"
    ),
    "distinct": "SELECT DISTINCT date_part('quarter', time) AS q, lat > 0 AS n FROM air",
    "count distinct": "SELECT COUNT(DISTINCT date_part('month', time)) AS c FROM air",
    "two dates compared": (
        "SELECT a.time, b.time AS later FROM air a JOIN air b "
        "ON a.time < b.time AND a.lat = b.lat AND a.lon = b.lon WHERE a.lat = 0 AND a.lon = 0"
    ),
    "constant": "SELECT upper('abc') AS u, date_part('year', TIMESTAMP '2024-02-03') AS y, name FROM city",  # noqa: E501
}


@pytest.mark.parametrize("sql", QUERIES.values(), ids=QUERIES.keys())
def test_agrees(weather, agree, sql):
    agree(weather, sql)


def test_a_value_that_a_filter_leaves_out_cannot_fail(agree):
    ctx = CompactContext()
    ctx.register("x", np.arange(3.0), dims=("i",))
    agree(ctx, "SELECT 6 / i AS q FROM x WHERE i > 0")


def test_a_failing_value_is_refused_with_what_fails(agree):
    ctx = CompactContext()
    ctx.register("x", np.arange(3.0), dims=("i",))
    assert ctx.sql("SELECT 6 / i AS q FROM x WHERE val > 0", engine="rows").to_arrow().num_rows == 2
    with pytest.warns(UserWarning, match="divide"):
        rows = ctx.sql("SELECT 6 / i AS q FROM x WHERE val > 0").to_arrow()
    assert sorted(rows.column("q").to_pylist()) == [3, 6]


EXTREMES = {
    "by month": "SELECT date_part('month', time) AS m, MAX(temp) AS h, MIN(temp) AS l FROM air GROUP BY 1",  # noqa: E501
    "by year and month": (
        "SELECT date_part('year', time) AS y, date_part('month', time) AS m, lat, MAX(temp) AS h "
        "FROM air GROUP BY 1, 2, 3"
    ),
    "of a filtered month": (
        "SELECT date_part('month', time) AS m, MIN(temp) AS l, COUNT(*) AS c FROM air "
        "WHERE temp > 0 GROUP BY 1"
    ),
    "of the coordinate": "SELECT date_part('year', time) AS y, MAX(lon) AS h FROM air GROUP BY 1",
    "by two axes": "SELECT date_part('year', time) AS y, lat > 0 AS n, MAX(temp) AS h FROM air GROUP BY 1, 2",  # noqa: E501
    "by an axis and its month": "SELECT time, date_part('month', time) AS m, MAX(temp) AS h FROM air GROUP BY 1, 2",  # noqa: E501
    "by a few": "SELECT time = '2023-01-07' AS t, MAX(temp) AS h FROM air GROUP BY 1",
}


@pytest.mark.parametrize("sql", EXTREMES.values(), ids=EXTREMES.keys())
def test_extremes_agree(weather, agree, sql):
    agree(weather, sql)


def test_extremes_of_groups_take_no_more_than_their_rows():
    ctx = CompactContext(memory_budget=4 * 8 * 600 * 50)
    time = np.datetime64("2020-01-01", "ns") + np.arange(600) * np.timedelta64(1, "D")
    ctx.register("x", np.ones((600, 50)), dims=("time", "i"), coords={"time": time})
    sql = "SELECT date_trunc('month', time) AS m, i, MAX(val) AS h FROM x GROUP BY 1, 2"
    assert ctx.sql(sql, engine="compact").to_xarray().shape == (20, 50)


TIMES = np.array(["2020-03-01", "2020-01-01", "2020-02-01", "2020-02-01"], "datetime64[ns]")
EXTREMES = {
    "whole": "SELECT MAX(time) AS m, MIN(time) AS l FROM d",
    "groups": "SELECT x, MAX(time) AS m FROM d GROUP BY x",
    "filtered": "SELECT MAX(time) AS m FROM d WHERE v > 3",
    "window": "SELECT MAX(time) OVER () AS m FROM d",
    "chosen": "SELECT MAX(CASE WHEN v > 2 THEN time END) AS m FROM d",
    "in a subquery": "SELECT x, v FROM d WHERE time = (SELECT MAX(time) FROM d)",
}


@pytest.mark.parametrize("times", [TIMES, TIMES[:3], TIMES[:1], TIMES[:0]], ids=len)
@pytest.mark.parametrize("sql", EXTREMES.values(), ids=EXTREMES.keys())
def test_extremes_of_dates_fold(agree, sql, times):
    ctx = CompactContext()
    data = np.arange(2.0 * len(times)).reshape(-1, 2)
    ctx.register("d", data, dims=("time", "x"), column="v", coords={"time": times})
    agree(ctx, sql)


def test_what_computes_with_dates_says_so():
    ctx = CompactContext()
    ctx.register("d", np.zeros(4), dims=("time",), coords={"time": TIMES})
    message = "it computes with dates of several columns, or of an aggregate"
    with pytest.warns(RowEngineWarning, match=message):
        rows = ctx.sql("SELECT MAX(time) - MIN(time) AS m FROM d").to_pandas()
    assert rows["m"][0] == TIMES.max() - TIMES.min()

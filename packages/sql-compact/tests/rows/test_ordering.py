"""ORDER BY, LIMIT and OFFSET of a whole query, in DataFusion's order."""

import numpy as np
import pyarrow as pa
import pytest
from sql_compact import CompactContext, UnsupportedSQL

ORDERED = {
    "dim": "SELECT people, name FROM city ORDER BY name",
    "value down": "SELECT time, lat, lon, temp FROM air ORDER BY temp DESC LIMIT 7",
    "two keys": "SELECT time, lat, lon FROM air ORDER BY lat DESC, time, lon LIMIT 20",
    "offset": "SELECT time, lat, lon FROM air ORDER BY temp LIMIT 5 OFFSET 11",
    "offset alone": "SELECT name FROM city ORDER BY people OFFSET 2",
    "expression": "SELECT name FROM city ORDER BY -people",
    "not selected": "SELECT name FROM city ORDER BY people DESC",
    "aggregate": "SELECT lat, AVG(temp) AS t FROM air GROUP BY lat ORDER BY t DESC LIMIT 2",
    "other aggregate": "SELECT lat FROM air GROUP BY lat ORDER BY SUM(temp * temp), lat",
    "nulls last": "SELECT NULLIF(people, 7) AS p, name FROM city ORDER BY p NULLS LAST",
    "nulls first": "SELECT NULLIF(people, 7) AS p, name FROM city ORDER BY p NULLS FIRST",
    "nulls, descending": "SELECT NULLIF(people, 7) AS p, name FROM city ORDER BY p DESC",
    "floats are in total order": "SELECT i, val FROM special ORDER BY val",
    "floats, descending": "SELECT i, val FROM special ORDER BY val DESC LIMIT 6",
    "projected after": "SELECT name || '!' AS n FROM city ORDER BY people LIMIT 2",
    "of a union": "SELECT i FROM special UNION ALL SELECT people FROM city ORDER BY i LIMIT 6",
    "ordered twice": "SELECT * FROM (SELECT * FROM city ORDER BY people) q ORDER BY name",
    "by month": (
        "SELECT date_part('month', time) AS m, COUNT(*) AS c FROM air GROUP BY 1 ORDER BY m DESC"
    ),
    "limit zero": "SELECT name FROM city ORDER BY name LIMIT 0",
    "common table": "WITH q AS (SELECT lat, MAX(temp) AS t FROM air GROUP BY lat) SELECT * FROM q ORDER BY t",  # noqa: E501
}


@pytest.mark.parametrize("sql", ORDERED.values(), ids=ORDERED.keys())
def test_same_order(weather, agree, sql):
    agree(weather, sql, ordered=True)


def test_limit_without_order_keeps_some_rows(weather):
    rows = weather.sql("SELECT * FROM city LIMIT 3", engine="compact").to_pandas()
    assert len(rows) == 3
    assert set(rows["name"]) <= {"Oslo", "Bern", "Lima", "Bonn"}


def test_an_ordered_result_is_still_an_array(weather):
    ordered = weather.sql("SELECT lat, AVG(temp) AS t FROM air GROUP BY lat ORDER BY t").to_xarray()
    plain = weather.sql("SELECT lat, AVG(temp) AS t FROM air GROUP BY lat").to_xarray()
    assert ordered.identical(plain)


def test_a_limited_result_is_an_array_of_its_rows(weather):
    result = weather.sql(
        "SELECT name, people FROM city ORDER BY people DESC LIMIT 2", engine="compact"
    )
    array = result.to_xarray()
    assert array.dims == ("name",)
    assert dict(zip(array["name"].values, array.values, strict=True)) == {"Bonn": 9, "Bern": 7}


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT SUM(people) AS s FROM (SELECT people FROM city ORDER BY people LIMIT 2) q",
        "SELECT name, SUM(people) OVER () AS s FROM (SELECT * FROM city ORDER BY people LIMIT 2) q",
        "SELECT * FROM (SELECT * FROM city ORDER BY people LIMIT 2) q WHERE people > 4",
    ],
)
def test_limit_inside_runs_on_rows(weather, sql):
    with pytest.raises(UnsupportedSQL, match="LIMIT"):
        weather.sql(sql, engine="compact")
    with pytest.warns(UserWarning, match="LIMIT"):
        assert weather.sql(sql).engine == "rows"


def test_order_of_no_rows():
    ctx = CompactContext()
    ctx.register("x", np.zeros(0), dims=("i",))
    table = ctx.sql("SELECT i, val FROM x ORDER BY val LIMIT 3", engine="compact").to_arrow()
    assert table.num_rows == 0
    assert table.schema.field("val").type == pa.float64()

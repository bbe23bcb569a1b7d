"""Parameters are values, views are queries with a name."""

import datetime as dt

import numpy as np
import pytest
from sql_compact import CompactContext, DomainError, InvalidSQL
from sql_compact.parameters import bind_parameters

VALUES = {
    "integer": (3, "SELECT name FROM city WHERE people > $1"),
    "negative": (-1, "SELECT people - $1 AS p FROM city"),
    "float": (2.5, "SELECT people * $1 AS p FROM city"),
    "infinity": (float("inf"), "SELECT people * $1 AS p FROM city"),
    "nan": (float("nan"), "SELECT people * $1 AS p FROM city"),
    "text": ("O'Brien -- ; $2", "SELECT name, $1 AS t FROM city"),
    "boolean": (True, "SELECT name, $1 AS t FROM city"),
    "null": (None, "SELECT name, COALESCE($1, people) AS t FROM city"),
    "numpy": (np.float32(0.5), "SELECT people * $1 AS p FROM city"),
    "date": (
        dt.date(2023, 3, 1),
        "SELECT lat, COUNT(*) AS c FROM air WHERE time > $1 GROUP BY lat",
    ),
    "time": (dt.datetime(2023, 3, 1, 12), "SELECT DISTINCT time FROM air WHERE time < $1"),
    "numpy time": (np.datetime64("2023-03-01"), "SELECT DISTINCT time FROM air WHERE time < $1"),
}


@pytest.mark.parametrize(("value", "sql"), VALUES.values(), ids=VALUES.keys())
def test_parameter(weather, agree, value, sql):
    assert agree(weather, sql, params=[value]).num_rows > 0
    named = weather.sql(sql.replace("$1", "$given"), params={"given": value}).to_arrow()
    assert named.num_rows == weather.sql(sql, params=(value,)).to_arrow().num_rows


def test_text_comes_back_as_given(weather):
    value = "a'b\"c -- $1 /* \n"
    table = weather.sql("SELECT $1 AS t FROM city", params=[value]).to_arrow()
    assert set(table.column("t").to_pylist()) == {value}


def test_quotes_and_comments_hold_no_parameters():
    sql = """SELECT '$1', "$1", $1 -- $2\n /* $3 */"""
    assert bind_parameters(sql, [7]) == sql.replace(", $1 -", ", 7 -")


@pytest.mark.parametrize(
    "value", [np.datetime64("3000-01-01"), np.datetime64("1500-06-01T00:00", "us")]
)
@pytest.mark.parametrize("engine", ["compact", "rows"])
def test_a_date_that_does_not_fit_is_no_parameter(weather, value, engine):
    with pytest.raises(DomainError, match=r"parameter \$1: dates outside 1678 to 2262"):
        weather.sql("SELECT $1 AS t FROM city", params=[value], engine=engine)


@pytest.mark.parametrize(
    ("sql", "params", "message"),
    [
        ("SELECT $2 AS a", [1], r"\$2 at character 7 has no value; given: \$1"),
        ("SELECT $1 AS a", None, r"\$1 at character 7 has no value; given: none"),
        ("SELECT 1 AS a", [1], r"no parameter \$1"),
        ("SELECT $1 AS a", [[1, 2]], "type list is not a SQL scalar"),
        ("SELECT $1 AS a", "x", "sequence or a mapping"),
    ],
)
def test_wrong_parameters(weather, sql, params, message):
    with pytest.raises(InvalidSQL, match=message):
        weather.sql(sql, params=params)


@pytest.fixture
def viewed():
    ctx = CompactContext()
    ctx.register("x", np.arange(12.0).reshape(3, 4), dims=("i", "j"))
    ctx.view("means", "SELECT i, AVG(val) AS m FROM x GROUP BY i;")
    ctx.view(
        "Anomaly",
        "WITH c AS (SELECT * FROM means) SELECT x.i, x.j, x.val - c.m AS a FROM x JOIN c ON x.i = c.i",  # noqa: E501
    )
    return ctx


def test_views_of_views(viewed, agree):
    agree(viewed, 'SELECT i, SUM(a * a) AS s FROM "Anomaly" GROUP BY i')
    agree(viewed, "WITH d AS (SELECT m + 1 AS m FROM means) SELECT SUM(m) AS s FROM d")


def test_a_view_sees_its_tables_as_of_the_query(viewed):
    viewed.register("x", np.full((2, 2), 7.0), dims=("i", "j"))
    assert viewed.sql("SELECT m FROM means").to_pandas()["m"].tolist() == [7.0, 7.0]


def test_a_common_table_hides_a_view(viewed):
    result = viewed.sql("WITH means AS (SELECT 1 AS one) SELECT * FROM means")
    assert result.columns == ("one",)


def test_views_differentiate(viewed):
    viewed.view("loss", "SELECT SUM(val * val) AS l FROM x")
    gradient = viewed.sql("SELECT i, j, grad(loss, x.val) AS g FROM x").to_xarray()
    np.testing.assert_array_equal(gradient, 2 * np.arange(12.0).reshape(3, 4))


def test_views_are_replaced_and_forgotten(viewed):
    viewed.view("means", "SELECT i, MAX(val) AS m FROM x GROUP BY i")
    assert viewed.sql("SELECT MAX(m) AS m FROM means").to_pandas()["m"].tolist() == [11.0]
    viewed.deregister("means")
    assert "means" not in viewed.tables


CIRCLES = {
    "itself": ({"a": "SELECT * FROM a"}, "SELECT * FROM a", "'a' reads itself: a -> a"),
    "two": ({"a": "SELECT * FROM b", "b": "SELECT * FROM a"}, "SELECT * FROM a", "a -> b -> a"),
    "from outside": (
        {"a": "SELECT * FROM b", "b": "SELECT * FROM a", "c": "SELECT * FROM b"},
        "SELECT * FROM c",
        "b -> a -> b",
    ),
    "capitals": ({"A": 'SELECT * FROM "A"'}, 'SELECT * FROM "A"', "'A' reads itself"),
}


@pytest.mark.parametrize("engine", ["auto", "compact", "rows"])
@pytest.mark.parametrize(("views", "sql", "message"), CIRCLES.values(), ids=CIRCLES.keys())
def test_views_in_a_circle(views, sql, message, engine):
    ctx = CompactContext()
    for name, text in views.items():
        ctx.view(name, text)
    for ask in (ctx.sql, ctx.explain):
        if not (ask == ctx.explain and engine == "rows"):
            with pytest.raises(InvalidSQL, match=message):
                ask(sql, engine=engine)


SHARED_WORDS = {
    "its column": ({"i": "SELECT i, SUM(val) AS s FROM x GROUP BY i"}, "SELECT s FROM i", 3),
    "its only column": ({"val": "SELECT SUM(val) AS val FROM x"}, "SELECT val FROM val", 1),
    "its text": ({"t": "SELECT 't' AS k"}, "SELECT k FROM t", 1),
    "its own common table": (
        {"a": "WITH a AS (SELECT 1 AS k) SELECT * FROM a"},
        "SELECT * FROM a",
        1,
    ),
    "a common table of the query": (
        {"a": "SELECT k FROM z", "z": "SELECT 1 AS k"},
        "WITH z AS (SELECT 2 AS l) SELECT a.k, z.l FROM a, z",
        1,
    ),
}


@pytest.mark.parametrize(("views", "sql", "rows"), SHARED_WORDS.values(), ids=SHARED_WORDS.keys())
def test_a_word_that_is_also_the_name_of_a_view(agree, views, sql, rows):
    ctx = CompactContext()
    ctx.register("x", np.arange(12.0).reshape(3, 4), dims=("i", "j"))
    for name, text in views.items():
        ctx.view(name, text)
    assert agree(ctx, sql).num_rows == rows


def test_views_have_no_parameters(viewed):
    with pytest.raises(InvalidSQL, match=r"view 'v': it has parameter \$1"):
        viewed.view("v", "SELECT i FROM x WHERE val > $1")


def test_views_must_not_read_themselves(viewed):
    viewed.view("a", "SELECT * FROM b")
    viewed.view("b", "SELECT * FROM a")
    with pytest.raises(InvalidSQL, match=r"a -> b -> a|b -> a -> b"):
        viewed.sql("SELECT * FROM a")
    with pytest.raises(InvalidSQL, match="table of that name"):
        viewed.view("x", "SELECT 1 AS one")

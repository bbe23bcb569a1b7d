"""What is wrong with a query, where, and what would work."""

import pytest
from sql_compact import (
    CompactError,
    InvalidSQL,
    RowEngineWarning,
    UnknownColumn,
    UnknownTable,
    UnsupportedSQL,
)

CASES = {
    "not a statement": ("SELEC temp FROM air", InvalidSQL, "SELEC.*line 1, column 1"),
    "no condition": ("SELECT temp FROM air WHERE", InvalidSQL, "line 1, column 27"),
    "missing comma": ("SELECT temp\nFROM air GROUP lat", InvalidSQL, "line 2, column"),
    "parenthesis": ("SELECT (temp FROM air", InvalidSQL, r"\( at character 7"),
    "quote": ("SELECT 'temp FROM air", InvalidSQL, "tokens"),
    "column": ("SELECT lat,\n  tmp FROM air", UnknownColumn, r"tmp.*air\.temp.*line 2, column 3"),
    "qualified column": ("SELECT a.tmp FROM air a", UnknownColumn, r"line 1, column 10"),
    "table": ("SELECT temp FROM aer", UnknownTable, "aer.*line 1, column 18"),
    "function": ("SELECT sine(temp) FROM air", InvalidSQL, "sine.*line 1, column 8"),
    "not grouped": ("SELECT lat, temp FROM air GROUP BY lat", InvalidSQL, "line 1, column 13"),
    "sum of text": ("SELECT SUM(name) AS s FROM city", InvalidSQL, "sum.*line 1, column 8"),
    "in a common table": (
        "WITH a AS (SELECT lat FROM air),\n b AS (SELECT lon FROM a)\nSELECT * FROM b",
        UnknownColumn,
        "lon.*a.lat",
    ),
    "two statements": ("SELECT 1; SELECT 2", InvalidSQL, "more than one statement"),
    "not a query": (
        "CREATE TABLE t AS SELECT 1",
        InvalidSQL,
        r"CREATE.*register\(\).*line 1, column 1",
    ),
    "explain": ("EXPLAIN SELECT 1", InvalidSQL, r"explain\(\)"),
    "empty": ("  ", InvalidSQL, "empty"),
    "recursive": ("WITH RECURSIVE a AS (SELECT 1) SELECT * FROM a", UnsupportedSQL, "Unroll"),
    "running window": (
        "SELECT SUM(temp) OVER (ORDER BY time) FROM air",
        UnsupportedSQL,
        "Leave out ORDER BY.*line 1, column 8",
    ),
    "integer division": (
        "SELECT name,\n people / (people - 1) FROM city",
        UnsupportedSQL,
        r"divide\(\).*Cast its arguments to DOUBLE.*line 2, column 9",
    ),
    "time zone": (
        "SELECT time AT TIME ZONE 'Asia/Tokyo' FROM air",
        UnsupportedSQL,
        "AT TIME ZONE.*Convert the coordinate.*line 1, column 13",
    ),
    "no hint of its own": (
        "SELECT CORR(temp, lat) FROM air",
        UnsupportedSQL,
        "CORR.*engine='rows'.*line 1, column 8",
    ),
    "median": ("SELECT\n  MEDIAN(temp) FROM air", UnsupportedSQL, "MEDIAN.*line 2, column 3"),
    "group by a value": (
        "SELECT temp, COUNT(*) FROM air GROUP BY temp",
        UnsupportedSQL,
        "GROUP BY.*Declare the column's domain.*line 1, column 32",
    ),
    "table twice": ("SELECT * FROM air, air", InvalidSQL, "duplicate.*alias.*line 1, column 15"),
    "alias twice": ("SELECT * FROM air a, air a", InvalidSQL, "alias of its own"),
    "join without alias": (
        "SELECT air.temp FROM air JOIN air ON air.lat = air.lat",
        InvalidSQL,
        "alias of its own",
    ),
    "ambiguous": ("SELECT lat FROM air a, air b", InvalidSQL, "lat.*alias before it.*column 8"),
    "sample": ("SELECT * FROM air TABLESAMPLE BERNOULLI(10)", InvalidSQL, "condition.*column 19"),
    "negative limit": ("SELECT temp FROM air LIMIT -1", InvalidSQL, "LIMIT must be >= 0"),
    "limit of text": ("SELECT temp FROM air LIMIT 'a'", InvalidSQL, "LIMIT to be an integer"),
    "limit inside": (
        "SELECT SUM(temp) FROM (SELECT temp FROM air LIMIT 3) q",
        UnsupportedSQL,
        "LIMIT.*end of the whole query.*line 1, column 45",
    ),
}


@pytest.mark.parametrize(("sql", "kind", "message"), CASES.values(), ids=CASES.keys())
def test_says_what_and_where(weather, sql, kind, message):
    with pytest.raises(CompactError, match=f"(?s){message}") as caught:
        weather.sql(sql, engine="compact")
    assert type(caught.value) is kind
    assert "datafusion" not in str(caught.value).lower() or kind is UnsupportedSQL
    assert "caused by a bug" not in str(caught.value)


def test_a_caret_stands_under_the_place(weather):
    with pytest.raises(UnknownColumn) as caught:
        weather.sql("SELECT lat, tmp FROM air")
    *_, text, caret = str(caught.value).split("\n")
    assert text[caret.index("^") :].startswith("tmp")


def test_rows_say_the_same(weather):
    with pytest.raises(UnknownColumn, match="line 1, column 8"):
        weather.sql("SELECT tmp FROM air", engine="rows")


@pytest.mark.parametrize("name", ["air", "public.air", "datafusion.public.air"])
def test_a_table_by_all_its_names(weather, agree, name):
    agree(weather, f"SELECT SUM(temp) AS s FROM {name}")


def test_a_function_that_makes_a_table_runs_on_rows(weather):
    with pytest.warns(RowEngineWarning, match="function that makes a table"):
        assert weather.sql("SELECT * FROM range(3)").to_arrow().num_rows == 3


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 2**63 - 1, -(2**63)])
def test_integers_of_64_bits(weather, agree, number):
    assert agree(weather, f"SELECT {number} AS a")["a"].to_pylist() == [number]

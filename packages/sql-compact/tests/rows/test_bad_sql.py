"""What is wrong with a query, where, and what would work."""

import pytest
from sql_compact import CompactError, InvalidSQL, UnknownColumn, UnknownTable, UnsupportedSQL

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

"""What has no tensor form raises, naming the operator; it never gives a wrong number."""

import pytest
from sql_compact import InvalidSQL, UnknownColumn, UnknownTable, UnsupportedSQL

UNSUPPORTED = {
    "SELECT b, SUM(val) OVER (ORDER BY t) AS s FROM x": r"SUM\(\.\.\.\) OVER: only windows over",
    "SELECT b, LAG(val) OVER (PARTITION BY b ORDER BY t) AS s FROM x": r"LAG\(\.\.\.\) OVER",
    "SELECT ROW_NUMBER() OVER (ORDER BY val) AS s FROM x": r"ROW_NUMBER\(\.\.\.\) OVER",
    "SELECT SUM(val) FILTER (WHERE flag) OVER () AS s FROM x": r"FILTER \(\.\.\.\) OVER",
    "SELECT COUNT(DISTINCT n) OVER () AS s FROM x": r"\(DISTINCT \.\.\.\) OVER",
    "SELECT n, SUM(val) AS s FROM x GROUP BY n": "GROUP BY: a group key must be a dimension",
    "SELECT val, COUNT(*) AS s FROM x GROUP BY val": "GROUP BY: a group key must be a dimension",
    "SELECT DISTINCT val FROM x": "GROUP BY: a group key must be a dimension",
    "SELECT SUM(DISTINCT n) AS s FROM x": "GROUP BY: a group key must be a dimension",
    "SELECT SUM(DISTINCT n) AS s, COUNT(*) AS c FROM x": r"SUM\(DISTINCT \.\.\.\): its argument "
    "must be",
    "SELECT b, SUM(val) AS s FROM x GROUP BY ROLLUP(b)": "GROUPING SETS",
    "SELECT b, t, SUM(val) AS s FROM x GROUP BY GROUPING SETS ((b), (t))": "GROUPING SETS",
    "SELECT n / k AS s FROM x": r"divide\(\): on integers it can fail",
    "SELECT n % k AS s FROM x": r"modulus\(\): on integers it can fail",
    "SELECT abs(n) AS s FROM x": r"abs\(\): on integers it can fail",
    "SELECT CAST(val AS BIGINT) AS s FROM x": "CAST: casting float64 to int64 can fail",
    "SELECT CAST(n AS INT) AS s FROM x": "CAST: casting int64 to int32 can fail",
    "SELECT CAST(n AS VARCHAR) AS s FROM x": "CAST: casting int64",
    "SELECT median(val) AS s FROM x": "MEDIAN: this aggregate has no tensor form",
    "SELECT corr(val, n) AS s FROM x": "CORR: this aggregate has no tensor form",
    "SELECT array_agg(n) AS s FROM x": "ARRAY_AGG: this aggregate has no tensor form",
    "SELECT random() AS s FROM x": r"random\(\): it gives another value on every row",
    "SELECT uuid() AS s FROM x": r"uuid\(\): it gives another value on every row",
    "SELECT md5(CAST(val AS VARCHAR)) AS s FROM x": "CAST",
    "SELECT b IN (SELECT t FROM x) AS s FROM x": r"IN \(subquery\)",
    "SELECT b, (SELECT val FROM y) AS s FROM x": "scalar subquery: it may have more than one row",
    "SELECT c FROM v WHERE c NOT IN (SELECT NULLIF(k, 1) FROM x)": r"NOT IN \(subquery\).*NULL",
    "SELECT c FROM v WHERE c NOT IN (SELECT NULLIF(k, 1) FROM x) OR c = 0": (
        r"NOT IN \(subquery\).*NULL"
    ),
    "SELECT i, n.val, g.val AS w FROM neg n FULL JOIN gap g USING (i)": "using",
    "SELECT unnest([1, 2]) AS s": "Unnest",
    "WITH RECURSIVE r AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM r WHERE a < 3) "
    "SELECT * FROM r": "WITH RECURSIVE",
}

INVALID = {
    "SELECT val FROM nowhere": (UnknownTable, "nowhere"),
    "SELECT nothing FROM x": (UnknownColumn, "nothing"),
    "SELECT x.nothing FROM x": (UnknownColumn, "nothing"),
    "SELEKT 1": (InvalidSQL, "SELEKT"),
    "SELECT (1": (InvalidSQL, r"unmatched \("),
    "SELECT 1)": (InvalidSQL, r"unmatched \)"),
    "SELECT 'a": (InvalidSQL, "tokens"),
    "": (InvalidSQL, "empty"),
    "SELECT 1; SELECT 2": (InvalidSQL, "more than one statement"),
    "SELECT b, SUM(val) AS s FROM x": (InvalidSQL, "b"),
    "SELECT dropout_keep(0.5, 1, 2, 3) AS s FROM x": (Exception, "1 to 4 indices"),
}


@pytest.mark.parametrize(("sql", "message"), UNSUPPORTED.items())
def test_an_unsupported_operator_is_named(engines, sql, message):
    with pytest.raises(UnsupportedSQL, match=f"(?s){message}") as raised:
        engines.compact.sql(sql, engine="compact")
    assert raised.value.operator and raised.value.reason


@pytest.mark.parametrize(("sql", "expected"), INVALID.items())
def test_an_invalid_query_is_a_typed_error(engines, sql, expected):
    kind, message = expected
    with pytest.raises(kind, match=f"(?s){message}"):
        engines.compact.sql(sql, engine="compact")


def test_nested_with_clauses_of_one_name(engines):
    # DataFusion's own planner refuses a name that hides another.
    table = engines.compact.sql(
        "WITH q AS (SELECT 1 AS a) SELECT * FROM (WITH q AS (SELECT 2 AS a) SELECT a FROM q) r",
        engine="compact",
    ).to_arrow()
    assert table.to_pylist() == [{"a": 2}]


def test_a_common_table_that_nothing_reads_is_not_planned(engines):
    table = engines.compact.sql(
        "WITH p AS (SELECT nonsense FROM nowhere), q AS (SELECT 1 AS a) SELECT a FROM q",
        engine="compact",
    ).to_arrow()
    assert table.to_pylist() == [{"a": 1}]

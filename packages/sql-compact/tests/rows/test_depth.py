"""Statements that nest deeply fold, or are refused before a stack ends."""

import warnings

import numpy as np
import pytest
from sql_compact import CompactContext, RowEngineWarning, UnsupportedSQL

DEEP = 300
FOLDS = {
    "sum": ("SELECT i, {} AS s FROM x", " + ".join(["val"] * DEEP)),
    "difference": ("SELECT i, {} AS s FROM x", " - ".join(["val"] * DEEP)),
    "sum of a dim": ("SELECT i, {} AS s FROM x", " + ".join(["i"] * DEEP)),
    "sum inside an aggregate": ("SELECT SUM({}) AS s FROM x", " + ".join(["val"] * DEEP)),
    "and": (
        "SELECT COUNT(*) AS s FROM x WHERE {}",
        " AND ".join(f"val <> {i}.5" for i in range(DEEP)),
    ),
    "or": (
        "SELECT COUNT(*) AS s FROM x WHERE {}",
        " OR ".join(f"val + {i} = 299" for i in range(DEEP)),
    ),
    "parentheses": ("SELECT i, {} AS s FROM x", "(" * 200 + "val" + ")" * 200),
    "functions": ("SELECT i, {} AS s FROM x", "abs(" * 150 + "val" + ")" * 150),
    "case": (
        "SELECT i, {} AS s FROM x",
        "".join(f"CASE WHEN val > {i} THEN {i} ELSE " for i in range(100)) + "1" + " END" * 100,
    ),
    "joins": (
        "SELECT SUM({}) AS s FROM x a0 "
        + " ".join(f"JOIN x a{i} ON a{i}.i = a0.i" for i in range(1, 40)),
        "a0.val",
    ),
    "common tables": (
        "WITH t0 AS (SELECT i, val FROM x), "
        + ", ".join(f"t{i} AS (SELECT i, val + 1 AS val FROM t{i - 1})" for i in range(1, 150))
        + " SELECT i, {} AS s FROM t149",
        "val",
    ),
}


@pytest.fixture(scope="module")
def context():
    made = CompactContext()
    made.register("x", np.array([1.0, 2.5, -3.0]), dims=("i",))
    return made


@pytest.mark.parametrize(("query", "expression"), FOLDS.values(), ids=FOLDS.keys())
def test_deep_expressions_fold(context, agree, query, expression):
    assert agree(context, query.format(expression)).num_rows in (1, 3)


TOO_DEEP = {
    "sum": "SELECT " + " + ".join(["val"] * 5000) + " AS s FROM x",
    "and": "SELECT i FROM x WHERE " + " AND ".join(["val > 1"] * 5000),
    "parentheses": "SELECT " + "(" * 300 + "val" + ")" * 300 + " AS s FROM x",
    "functions": "SELECT " + "abs(" * 1000 + "val" + ")" * 1000 + " AS s FROM x",
    "signs": "SELECT " + "-(" * 1000 + "val" + ")" * 1000 + " AS s FROM x",
    "case": "SELECT " + "CASE WHEN val > 0 THEN " * 600 + "1" + " END" * 600 + " AS s FROM x",
    "subqueries": "SELECT s FROM " + "(SELECT s + 1 AS s FROM " * 300 + "x" + ")" * 300,
}


@pytest.mark.parametrize("engine", ["auto", "compact", "rows"])
@pytest.mark.parametrize("sql", TOO_DEEP.values(), ids=TOO_DEEP.keys())
def test_what_would_end_a_stack_is_refused_with_the_limit(context, engine, sql):
    with pytest.raises(UnsupportedSQL, match=r"at most 1,000 operators(?s:.*)at line 1, column"):
        context.sql(sql, engine=engine)


def test_breadth_is_not_depth(context):
    many = ", ".join(f"val + {i} AS v{i}" for i in range(1500))
    assert len(context.sql(f"SELECT {many} FROM x").columns) == 1500
    listed = ", ".join(map(str, range(3000)))
    counted = context.sql(f"SELECT COUNT(*) AS c FROM x WHERE val IN ({listed})").to_arrow()
    assert counted["c"].to_pylist() == [1]


def test_deeper_than_python_recurses_runs_on_rows_with_the_reason(context):
    sql = (
        "SELECT i, " + "CASE WHEN val > 0 THEN " * 300 + "1" + " ELSE 0 END" * 300 + " AS s FROM x"
    )
    with pytest.raises(UnsupportedSQL, match="nests deeper than Python recurses"):
        context.sql(sql, engine="compact")
    with pytest.warns(RowEngineWarning, match="nests deeper than Python recurses"):
        rows = context.sql(sql).to_pandas()
    assert rows.sort_values("i")["s"].tolist() == [1, 1, 0]


def test_many_views_of_views(context):
    made = CompactContext()
    made.register("x", np.array([1.0]), dims=("i",))
    made.view("v0", "SELECT val FROM x")
    for i in range(1, 60):
        made.view(f"v{i}", f"SELECT val + 1 AS val FROM v{i - 1}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert made.sql("SELECT val FROM v59").to_arrow()["val"].to_pylist() == [60.0]

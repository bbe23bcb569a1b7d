"""Which engine runs which SQL: writes the table in ``docs/sql-coverage.md``.

    python packages/sql-compact/tests/rows/coverage.py

Every example is run. ``tensor program``: it folds, and its rows are DataFusion's; ``rows``: it
has no tensor form and runs on DataFusion's rows with a warning, for the reason given;
``refused``: it does not run at all.
"""

import sys
import warnings
from pathlib import Path

import numpy as np
import xarray as xr
from sql_compact import CompactContext, CompactError, UnsupportedSQL

PATH = Path(__file__).parents[4] / "docs" / "sql-coverage.md"

CASES = {
    "Rows": {
        "projection, arithmetic, aliases": "SELECT i, j, val * 2 + n AS r FROM x",
        "WHERE on dims and values": "SELECT * FROM x WHERE i > 0 AND val < 1",
        "three-valued logic": "SELECT i, j FROM x WHERE NOT (val > 0) OR val IS NULL",
        "CASE, COALESCE, NULLIF": "SELECT CASE WHEN val > 0 THEN COALESCE(NULLIF(n, 1), 0) END AS r FROM x",  # noqa: E501
        "BETWEEN, IN": "SELECT i FROM x WHERE val BETWEEN -1 AND 1 AND k IN (0, 2)",
        "IS [NOT] DISTINCT FROM": "SELECT i FROM x WHERE val IS DISTINCT FROM 1",
        "IS UNKNOWN, IS TRUE": "SELECT i, (val > NULLIF(n, 1)) IS UNKNOWN AS r FROM x",
        "GREATEST, LEAST, which leave NULLs out": "SELECT GREATEST(n, NULLIF(k, 1)) AS r FROM x",
        "float functions": "SELECT sqrt(abs(val)) + exp(val) + round(val) AS r FROM x",
        "integer division by a literal": "SELECT n / 3 AS q, n % 4 AS r FROM x",
        "integer division by a column": "SELECT n / (k + 1) AS q FROM x",
        "CAST to a wider number": "SELECT CAST(n AS DOUBLE) AS r FROM x",
        "CAST of values to a narrower type": "SELECT CAST(val AS INT) AS r FROM x",
        "CAST of values to text": "SELECT CAST(val AS TEXT) AS r FROM x",
        "VALUES, SELECT without FROM": "SELECT * FROM (VALUES (1, 2.5), (3, 4.5)) AS q(a, b)",
        "random()": "SELECT i FROM x WHERE random() >= 0",
    },
    "Expressions of a dim or bounded column": {
        "date_part, EXTRACT, date_trunc, to_char": "SELECT date_part('month', time) AS m, to_char(time, '%Y') AS y FROM g",  # noqa: E501
        "GROUP BY date_part": "SELECT date_part('month', time) AS m, AVG(t) AS r FROM g GROUP BY 1",
        "GROUP BY FLOOR(lon / 10)": "SELECT FLOOR(lon / 10) AS b, AVG(t) AS r FROM g GROUP BY 1",
        "INTERVAL arithmetic": "SELECT time + INTERVAL '1 month' AS later FROM g",
        "LIKE, ILIKE, text functions": "SELECT upper(name) AS u FROM city WHERE name LIKE 'B%'",
        "CASE to text": "SELECT CASE WHEN lon > 5 THEN 'east' ELSE 'west' END AS side, SUM(t) AS s FROM g GROUP BY 1",  # noqa: E501
        "CASE and COALESCE of text and dates": "SELECT CASE WHEN val > 5 THEN name ELSE 'small' END AS r FROM city",  # noqa: E501
        "time zones other than UTC": "SELECT time AT TIME ZONE 'Europe/Brussels' AS r FROM g",
        "regular expressions": "SELECT name FROM city WHERE name ~ '^[BL]'",
    },
    "Joins": {
        "INNER on dims": "SELECT x.i, x.val * y.val AS p FROM x JOIN y ON x.i = y.i AND x.j = y.j",
        "LEFT": "SELECT x.i, w.val FROM x LEFT JOIN w ON x.k = w.k",
        "RIGHT": "SELECT x.i, w.k FROM x RIGHT JOIN w ON x.k = w.k",
        "FULL": "SELECT a.k, b.k AS l FROM w a FULL JOIN shifted b ON a.k = b.k",
        "SEMI, ANTI": "SELECT * FROM w LEFT ANTI JOIN shifted s ON w.k = s.k",
        "CROSS": "SELECT x.i, w.k FROM x CROSS JOIN w",
        "on a bounded column": "SELECT x.i, w.val FROM x JOIN w ON x.k = w.k",
        "on an expression of a dim": "SELECT a.time, a.t - b.t AS d FROM g a JOIN g b ON a.time = b.time + INTERVAL '31 days' AND a.lon = b.lon",  # noqa: E501
        "on inequalities": "SELECT a.i, b.i AS l FROM x a JOIN x b ON a.i < b.i AND a.j = b.j",
        "on values": "SELECT a.i, b.i AS l FROM x a JOIN x b ON a.val = b.val",
        "USING, NATURAL": "SELECT * FROM w NATURAL JOIN v",
        "FULL ... USING": "SELECT k, a.val FROM w a FULL JOIN shifted b USING (k)",
        "self-join with aliases": "SELECT p.i, q.j FROM x p JOIN x q ON p.i = q.i",
        "LATERAL": "SELECT w.k, q.s FROM w, LATERAL (SELECT SUM(x.val) AS s FROM x WHERE x.k = w.k) q",  # noqa: E501
    },
    "Aggregates": {
        "SUM, COUNT, AVG, MIN, MAX": "SELECT i, SUM(val) AS s, COUNT(val) AS c, AVG(val) AS a, MIN(val) AS l, MAX(val) AS h FROM x GROUP BY i",  # noqa: E501
        "STDDEV, VAR (both kinds)": "SELECT STDDEV(val) AS s, STDDEV_POP(val) AS p, VAR_SAMP(val) AS v, VAR_POP(val) AS q FROM x",  # noqa: E501
        "FILTER (WHERE ...)": "SELECT SUM(val) FILTER (WHERE j > 0) AS s FROM x",
        "MIN, MAX of text and dates": "SELECT MIN(time) AS a, MAX(time) AS b FROM g",
        "BOOL_AND, BOOL_OR": "SELECT i, BOOL_AND(val > 0) AS a, BOOL_OR(n > 0) AS o FROM x GROUP BY i",  # noqa: E501
        "GROUP BY a bounded column": "SELECT k, SUM(val) AS s FROM x GROUP BY k",
        "GROUP BY a condition": "SELECT val > 0 AS p, COUNT(*) AS c FROM x GROUP BY 1",
        "GROUP BY values without a domain": "SELECT n, COUNT(*) AS c FROM x GROUP BY n",
        "GROUP BY text of a coordinate": "SELECT zone, AVG(t) AS r FROM g GROUP BY zone",
        "DISTINCT of dims and bounded columns": "SELECT DISTINCT i, k FROM x",
        "COUNT(DISTINCT bounded column)": "SELECT i, COUNT(DISTINCT k) AS c, COUNT(*) AS n FROM x GROUP BY i",  # noqa: E501
        "COUNT(DISTINCT values)": "SELECT i, COUNT(DISTINCT val) AS c, COUNT(*) AS n FROM x GROUP BY i",  # noqa: E501
        "HAVING": "SELECT i, SUM(val) AS s FROM x GROUP BY i HAVING COUNT(*) > 1",
        "ROLLUP, CUBE, GROUPING SETS": "SELECT i, j, SUM(val) AS s FROM x GROUP BY ROLLUP (i, j)",
        "MEDIAN, percentiles": "SELECT MEDIAN(val) AS m FROM x",
        "CORR, COVAR": "SELECT CORR(val, n) AS c FROM x",
        "array_agg, string_agg": "SELECT string_agg(name, ',') AS s FROM city",
        "first_value, last_value": "SELECT first_value(val ORDER BY j) AS f FROM x GROUP BY i",
    },
    "Windows": {
        "aggregate OVER (PARTITION BY ...)": "SELECT i, j, val - AVG(val) OVER (PARTITION BY i) AS d FROM x",  # noqa: E501
        "aggregate OVER ()": "SELECT i, j, val / SUM(val) OVER () AS d FROM x",
        "PARTITION BY a key that may be NULL": "SELECT i, j, SUM(val) OVER (PARTITION BY NULLIF(k, 1)) AS s FROM x",  # noqa: E501
        "over groups: SUM(SUM(...)) OVER ()": "SELECT k, SUM(val) / SUM(SUM(val)) OVER () AS s FROM x GROUP BY k",  # noqa: E501
        "running: OVER (... ORDER BY ...)": "SELECT i, j, SUM(val) OVER (PARTITION BY i ORDER BY j) AS s FROM x",  # noqa: E501
        "ROWS BETWEEN": "SELECT i, j, AVG(val) OVER (ORDER BY i, j ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS s FROM x",  # noqa: E501
        "ROW_NUMBER, RANK": "SELECT i, j, ROW_NUMBER() OVER (ORDER BY i, j) AS r FROM x",
        "LAG, LEAD": "SELECT i, j, LAG(val) OVER (PARTITION BY i ORDER BY j) AS r FROM x",
    },
    "Queries in queries": {
        "common tables, nested": "WITH a AS (WITH b AS (SELECT i, val FROM x) SELECT i, SUM(val) AS s FROM b GROUP BY i) SELECT * FROM a",  # noqa: E501
        "WITH RECURSIVE": "WITH RECURSIVE r AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM r WHERE a < 3) SELECT * FROM r",  # noqa: E501
        "IN, EXISTS": "SELECT * FROM w WHERE k IN (SELECT k FROM shifted) OR EXISTS (SELECT 1 FROM v WHERE v.k = w.k)",  # noqa: E501
        "NOT IN of a column without NULLs": "SELECT * FROM w WHERE k NOT IN (SELECT k FROM shifted)",  # noqa: E501
        "NOT IN of what may be NULL": "SELECT * FROM w WHERE k NOT IN (SELECT NULLIF(k, 3) FROM shifted)",  # noqa: E501
        "scalar": "SELECT val - (SELECT AVG(val) FROM x) AS d FROM x",
        "correlated scalar": "SELECT k, (SELECT SUM(x.val) FROM x WHERE x.k = w.k) AS s FROM w",
        "UNION ALL": "SELECT k, val FROM w UNION ALL SELECT k, val FROM shifted",
        "UNION, INTERSECT, EXCEPT of dims": "SELECT k FROM w UNION SELECT k FROM shifted",
    },
    "Order": {
        "ORDER BY at the end": "SELECT i, j, val FROM x ORDER BY val DESC NULLS LAST, i, j",
        "LIMIT, OFFSET at the end": "SELECT i, j FROM x ORDER BY i, j LIMIT 2 OFFSET 1",
        "LIMIT inside": "SELECT SUM(val) AS s FROM (SELECT val FROM x ORDER BY i, j LIMIT 2) q",
        "DISTINCT ON": "SELECT DISTINCT ON (i) i, j FROM x ORDER BY i, j",
    },
    "Derivatives": {
        "grad": "WITH loss AS (SELECT SUM(val * val) AS l FROM w) SELECT k, grad(loss, w.val) AS g FROM w",  # noqa: E501
        "jvp": "WITH u AS (SELECT k, 1.0 AS val FROM w) SELECT jvp(SUM(val * val), w.val, u) AS d FROM w",  # noqa: E501
        "grad of a maximum": "WITH loss AS (SELECT MAX(val) AS l FROM w) SELECT k, grad(loss, w.val) AS g FROM w",  # noqa: E501
        "grad of a median": "WITH loss AS (SELECT MEDIAN(val) AS l FROM w) SELECT k, grad(loss, w.val) AS g FROM w",  # noqa: E501
    },
    "Statements": {
        "CREATE, INSERT, UPDATE": "CREATE TABLE t AS SELECT * FROM w",
        "EXPLAIN": "EXPLAIN SELECT * FROM w",
    },
}


def context():
    """Tables with dims, bounded columns, NULLs, dates and text."""
    ctx = CompactContext()
    values = np.array([[0.5, -1.25, 2.0], [1.5, 0.25, -0.75]])
    mask = np.array([[False, True, False], [False, False, False]])
    x = xr.Dataset(
        {
            "val": (("i", "j"), values),
            "n": (("i", "j"), [[1, -2, 3], [4, 1, 0]]),
            "k": (("i", "j"), [[0, 2, 1], [1, 2, 0]]),
        }
    )
    ctx.register("x", x, domain={"k": 3}, valid={"val": ~mask})
    ctx.register("y", values + 1, dims=("i", "j"))
    ctx.register("w", np.array([1.0, 2.0, 3.0]), dims=("k",))
    ctx.register("v", np.array([5.0, 6.0]), dims=("k",), column="other")
    ctx.register("shifted", np.array([7.0, 8.0]), dims=("k",), coords={"k": [2, 3]})
    time = np.array(["2024-01-01", "2024-02-01", "2025-03-01"], dtype="datetime64[ns]")
    grid = xr.Dataset(
        {"t": (("time", "lon"), np.arange(6.0).reshape(3, 2))},
        coords={"time": time, "lon": [0.0, 12.5], "zone": ("lon", ["dry", "wet"])},
    )
    ctx.register("g", grid)
    ctx.register("city", np.array([5, 7]), dims=("name",), coords={"name": ["Bern", "Oslo"]})
    return ctx


def outcome(ctx, sql):
    """Who runs a query and, unless it is a tensor program, why."""
    try:
        ours = ctx.sql(sql, engine="compact").to_arrow()
    except UnsupportedSQL as error:
        reason = f"{error.operator}: {error.reason}".split("\n")[0]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ctx.sql(sql).to_arrow()
        except CompactError:
            return "refused", reason
        return "rows", reason
    except CompactError as error:
        return "refused", str(error).split("\n")[0]
    if "grad(" not in sql and "jvp(" not in sql:
        theirs = ctx.sql(sql, engine="rows").to_arrow()
        assert ours.num_rows == theirs.num_rows, sql
        a, b = (sorted(map(repr, _rounded(t))) for t in (ours, theirs))
        assert a == b, f"{sql}: {a} != {b}"
    return "tensor program", ""


def _rounded(table):
    for row in zip(*(c.to_pylist() for c in table.columns), strict=True):
        yield [float(f"{v:.9g}") + 0.0 if isinstance(v, float) else v for v in row]


def document():
    """The whole page, in Markdown."""
    lines = [
        "# SQL coverage",
        "",
        "Generated by `packages/sql-compact/tests/rows/coverage.py`, which runs every example; do",
        "not edit. *Tensor program*: the query folds, and its rows are DataFusion's. *Rows*: it has",  # noqa: E501
        'no tensor form; `engine="auto"` runs it on DataFusion\'s rows with a warning that names the',  # noqa: E501
        'reason, `engine="compact"` raises it. *Refused*: it does not run.',
        "",
    ]
    ctx = context()
    for section, cases in CASES.items():
        lines += [f"## {section}", "", "| SQL | runs as | why | example |", "|---|---|---|---|"]
        for name, sql in cases.items():
            engine, reason = outcome(ctx, sql)
            lines.append(f"| {_cell(name)} | {engine} | {_cell(reason)} | `{_cell(sql)}` |")
        lines.append("")
    return "\n".join([*lines, *CHOICES])


#: Where engines disagree, and what is chosen here.
CHOICES = (
    "## Where engines disagree",
    "",
    "| question | here | DataFusion | DuckDB |",
    "|---|---|---|---|",
    "| `MIN`, `MAX` of NaN and infinities | IEEE total order | that; with `GROUP BY` NaN is skipped, and of infinities alone the largest finite number comes out | one NaN, above everything |",  # noqa: E501
    "| -0.0 and 0.0 as keys | two keys | two keys | one key |",
    "| overflow of integers | wraps | wraps | an error |",
    "| `/` of integers | of integers | of integers | of floats |",
    "| division by zero | floats: infinity or NaN; integers: on rows, an error | the same | NULL |",
    "| variance of an infinite value | NaN | NaN | an error |",
    "| order of float sums | any; within roundings of the sum of magnitudes | any | any |",
    "| `UNION ALL` of NOT NULL and nullable literals | folds | fails | runs |",
    "",
)


def _cell(text):
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(document())
    sys.stdout.write(f"wrote {PATH.name}\n")

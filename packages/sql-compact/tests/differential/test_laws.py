"""Laws of the algebra, and random queries, on random small tables."""

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

COMMON = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

numbers = st.one_of(st.integers(-8, 8).map(float), st.sampled_from([0.0, -0.0, 0.5, -1e-3, 3.25]))


@st.composite
def tables(draw):
    """f(a, b), g(b, c), h(c) and an integer column k of f that names a position of b or none."""
    sizes = {dim: draw(st.integers(0, 3)) for dim in "abc"}
    start = draw(st.integers(-2, 2))

    def array(*dims, elements=numbers):
        count = int(np.prod([sizes[d] for d in dims]))
        values = draw(st.lists(elements, min_size=count, max_size=count))
        return dims, np.array(values).reshape([sizes[d] for d in dims])

    b = np.arange(start, start + sizes["b"])
    dims, codes = array("a", "b", elements=st.integers(0, 3))
    return {
        "f": xr.Dataset(
            {"val": array("a", "b"), "k": (dims, codes.astype(np.int64))}, coords={"b": b}
        ),
        "g": xr.Dataset({"val": array("b", "c")}, coords={"b": b[::-1].copy()}),
        "h": xr.Dataset({"val": array("c")}),
    }


DOMAINS = {"f": {"k": 4}}

LAWS = {
    "an inner join commutes": (
        "SELECT f.a, f.b, g.c, f.val, g.val AS w FROM f JOIN g ON f.b = g.b",
        "SELECT f.a, f.b, g.c, f.val, g.val AS w FROM g JOIN f ON g.b = f.b",
    ),
    "a join associates": (
        "SELECT q.a, q.b, q.c, q.v * h.val AS p FROM "
        "(SELECT f.a, f.b, g.c, f.val + g.val AS v FROM f JOIN g ON f.b = g.b) q "
        "JOIN h ON q.c = h.c",
        "SELECT f.a, f.b, q.c, (f.val + q.g) * q.h AS p FROM f JOIN "
        "(SELECT g.b, g.c, g.val AS g, h.val AS h FROM g JOIN h ON g.c = h.c) q ON f.b = q.b",
    ),
    "a join is a filtered cross join": (
        "SELECT f.a, g.c, f.val * g.val AS p FROM f JOIN g ON f.b = g.b",
        "SELECT f.a, g.c, f.val * g.val AS p FROM f CROSS JOIN g WHERE f.b = g.b",
    ),
    "a filter goes below a join": (
        "SELECT * FROM (SELECT f.a, f.b, g.c, f.val FROM f JOIN g ON f.b = g.b) q WHERE val > 0",
        "SELECT q.a, q.b, g.c, q.val FROM (SELECT a, b, val FROM f WHERE val > 0) q "
        "JOIN g ON q.b = g.b",
    ),
    "a filter goes below a group": (
        "SELECT a, SUM(val) AS s FROM f GROUP BY a HAVING a > 0",
        "SELECT a, SUM(val) AS s FROM f WHERE a > 0 GROUP BY a",
    ),
    "filters commute": (
        "SELECT * FROM (SELECT * FROM f WHERE val > 0) q WHERE k > 1",
        "SELECT * FROM (SELECT * FROM f WHERE k > 1) q WHERE val > 0",
    ),
    "a sum over a union is the sum of sums": (
        "SELECT SUM(val) AS s FROM (SELECT val FROM f UNION ALL SELECT val FROM g) q",
        "SELECT SUM(s) AS s FROM (SELECT SUM(val) AS s FROM f UNION ALL SELECT SUM(val) FROM g) q",
    ),
    "a sum in two steps": (
        "SELECT a, SUM(val) AS s FROM f GROUP BY a",
        "SELECT a, SUM(s) AS s FROM (SELECT a, k, SUM(val) AS s FROM f GROUP BY a, k) q GROUP BY a",
    ),
    "the order of a contraction": (
        "SELECT f.a, SUM(f.val * g.val * h.val) AS s FROM f JOIN g ON f.b = g.b "
        "JOIN h ON g.c = h.c GROUP BY f.a",
        "SELECT f.a, SUM(f.val * q.s) AS s FROM f JOIN (SELECT g.b, SUM(g.val * h.val) AS s "
        "FROM g JOIN h ON g.c = h.c GROUP BY g.b) q ON f.b = q.b GROUP BY f.a",
    ),
    "a left join is an inner join and an anti join": (
        "SELECT f.a, f.b, f.k, g.b AS m FROM f LEFT JOIN g ON f.k = g.b",
        "SELECT f.a, f.b, f.k, g.b AS m FROM f JOIN g ON f.k = g.b UNION ALL "
        "SELECT f.a, f.b, f.k, NULL FROM f LEFT ANTI JOIN g ON f.k = g.b",
    ),
    "semi and anti join part the rows": (
        "SELECT a, b, val FROM f",
        "SELECT a, b, val FROM f LEFT SEMI JOIN g ON f.k = g.b UNION ALL "
        "SELECT a, b, val FROM f LEFT ANTI JOIN g ON f.k = g.b",
    ),
    "a gather is a join with a filter": (
        "SELECT f.a, f.b, g.c, g.val FROM f JOIN g ON f.k = g.b",
        "SELECT f.a, f.b, g.c, g.val FROM f CROSS JOIN g WHERE f.k <= g.b AND f.k >= g.b",
    ),
    "distinct is a group without aggregates": (
        "SELECT DISTINCT k, a FROM f",
        "SELECT k, a FROM f GROUP BY k, a",
    ),
    "an average is a sum by a count": (
        "SELECT a, AVG(val) AS m FROM f GROUP BY a",
        "SELECT a, SUM(val) / COUNT(val) AS m FROM f GROUP BY a",
    ),
    "a window is a join with a group": (
        "SELECT f.a, f.b, SUM(val) OVER (PARTITION BY f.a) AS s FROM f",
        "SELECT f.a, f.b, q.s FROM f JOIN (SELECT a, SUM(val) AS s FROM f GROUP BY a) q "
        "ON f.a = q.a",
    ),
}


@pytest.mark.parametrize(("left", "right"), LAWS.values(), ids=LAWS.keys())
def test_law(engines_over, same_bag, left, right):
    @COMMON
    @given(tables())
    def holds(datasets):
        engines = engines_over(datasets, DOMAINS)
        ours = engines.agree(left)
        other = engines.compact.sql(right, engine="compact").to_arrow()
        same_bag(ours, other, 64 * np.finfo(float).eps * engines.magnitude**3)

    holds()


# --- random queries ---------------------------------------------------------------------

SOURCES = {
    "f": {"a": "int", "b": "int", "k": "int", "val": "float"},
    "g": {"b": "int", "c": "int", "val": "float"},
    "h": {"c": "int", "val": "float"},
}


@st.composite
def scalars(draw, columns, depth=2):
    """A float expression of the columns."""
    if depth == 0 or draw(st.integers(0, 2)) == 0:
        names = [*columns, "0.5", "2.0"]
        name = draw(st.sampled_from(names))
        return f"CAST({name} AS DOUBLE)"
    a = draw(scalars(columns, depth - 1))
    b = draw(scalars(columns, depth - 1))
    form = draw(
        st.sampled_from(
            [
                "({a} + {b})",
                "({a} - {b})",
                "({a} * {b})",
                "abs({a})",
                "NULLIF({a}, {b})",
                "COALESCE({a}, {b})",
                "CASE WHEN {c} THEN {a} ELSE {b} END",
                "CASE WHEN {c} THEN {a} END",
            ]
        )
    )
    c = draw(conditions(columns, 0)) if "{c}" in form else ""
    return form.format(a=a, b=b, c=c)


@st.composite
def conditions(draw, columns, depth=1):
    """A boolean expression of the columns."""
    if depth and draw(st.booleans()):
        word = draw(st.sampled_from(["AND", "OR"]))
        left, right = draw(conditions(columns, depth - 1)), draw(conditions(columns, depth - 1))
        return f"({left} {word} {right})" if draw(st.booleans()) else f"(NOT {left})"
    column = draw(st.sampled_from(list(columns)))
    operator = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
    other = draw(st.sampled_from([*columns, "0", "1", "2"]))
    return draw(
        st.sampled_from(
            [
                f"{column} {operator} {other}",
                f"{column} IS NOT NULL",
                f"{column} IN (0, 1)",
                f"{column} BETWEEN 0 AND 2",
            ]
        )
    )


@st.composite
def queries(draw):
    """One or two tables joined, filtered, and projected or grouped."""
    names = draw(st.lists(st.sampled_from(list(SOURCES)), min_size=1, max_size=2))
    columns = {f"t{i}.{c}": kind for i, n in enumerate(names) for c, kind in SOURCES[n].items()}
    source = f"{names[0]} t0"
    if len(names) == 2:
        kind = draw(st.sampled_from(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]))
        keys = [c for c in columns if columns[c] == "int"]
        left = draw(st.sampled_from([k for k in keys if k.startswith("t0")]))
        right = draw(st.sampled_from([k for k in keys if k.startswith("t1")]))
        source += f" {kind} {names[1]} t1 ON {left} = {right}"
        if draw(st.booleans()) and kind != "FULL JOIN":
            source += f" AND t1.val > {draw(st.integers(-1, 1))}"
    where = f" WHERE {draw(conditions(columns))}" if draw(st.booleans()) else ""
    value = draw(scalars(columns))
    if draw(st.booleans()):
        shown = ", ".join(f"{c} AS c{i}" for i, c in enumerate(columns))
        return f"SELECT {shown}, {value} AS v FROM {source}{where}"
    groups = [c for c in columns if columns[c] == "int"]
    chosen = draw(st.lists(st.sampled_from(groups), max_size=2, unique=True))
    keys = "".join(f"{c} AS g{i}, " for i, c in enumerate(chosen))
    by = f" GROUP BY {', '.join(chosen)}" if chosen else ""
    filtered = draw(st.sampled_from(["", f" FILTER (WHERE {draw(conditions(columns, 0))})"]))
    return (
        f"SELECT {keys}SUM({value}){filtered} AS s, COUNT({value}) AS n, COUNT(*) AS r, "
        f"MIN({value}) AS l, MAX({value}) AS h, AVG({value}) AS m FROM {source}{where}{by}"
    )


def test_random_queries(engines_over):
    @settings(COMMON, max_examples=150)
    @given(tables(), queries())
    def agree(datasets, sql):
        engines_over(datasets, DOMAINS, magnitude_power=3).agree(sql)

    agree()

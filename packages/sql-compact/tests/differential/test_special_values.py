"""What SQL means where it is easy to get wrong: NaN, infinity, signed zeros, NULL, overflow."""

import numpy as np
import pytest
import xarray as xr

SPECIAL = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1.0, -1.0, 1e16, 5e-324])


@pytest.fixture(scope="module")
def specials(engines_over):
    rng = np.random.default_rng(7)
    big = np.iinfo(np.int64).max
    pairs = np.stack(np.meshgrid(SPECIAL, SPECIAL, indexing="ij"))
    floats = rng.choice(SPECIAL, size=(6, 5))
    return engines_over(
        {
            "p": xr.Dataset({"a": (("i", "j"), pairs[0]), "b": (("i", "j"), pairs[1])}),
            "s": xr.Dataset(
                {"val": (("r", "c"), floats), "w": (("r", "c"), rng.normal(size=(6, 5)))}
            ),
            "m": xr.Dataset({"val": (("c", "d"), rng.normal(size=(5, 3)))}),
            "big": xr.Dataset({"n": (("r",), np.array([big, 1, -big - 1, -1]))}),
            "ordered": xr.Dataset({"val": (("r",), np.array([1e16, 1.0, -1e16, 1.0]))}),
            "single": xr.Dataset({"val": (("r",), np.arange(4, dtype=np.float32) / 3)}),
            "zeros": xr.Dataset({"q": (("z",), [1, 2])}, coords={"z": [-0.0, 1.0]}),
            "plain": xr.Dataset({"q": (("z",), [1, 2])}, coords={"z": [0.0, 1.0]}),
        }
    )


QUERIES = {
    "comparisons": (
        "SELECT a = b AS e, a <> b AS n, a < b AS l, a <= b AS k, a > b AS g, a >= b AS h, i, j "
        "FROM p"
    ),
    "distinct from": "SELECT i, j, a IS DISTINCT FROM b AS d FROM p",
    "arithmetic": "SELECT i, j, a + b AS s, a - b AS d, a * b AS p, a / b AS q FROM p",
    "nullif": "SELECT i, j, NULLIF(a, b) AS r FROM p",
    "zero times": "SELECT i, j, 0 * a AS r, 1 * a AS s, a - a AS d, a + 0 AS z, a / 1 AS q FROM p",
    "greatest": "SELECT i, j, greatest(a, b) AS g, least(a, b) AS l FROM p",
    "min of both zeros": "SELECT MIN(a) AS l, MAX(a) AS h FROM p WHERE a = 0.0 OR a = -0.0",
    "sum": "SELECT r, SUM(val) AS s, AVG(val) AS a, COUNT(val) AS c FROM s GROUP BY r",
    "masked": (
        "SELECT r, SUM(CASE WHEN val = val AND abs(val) < 2 THEN val ELSE 0 END) AS s FROM s GROUP "
        "BY r"
    ),
    "mask hides": "SELECT r, SUM(val) AS s FROM s WHERE abs(val) < 2 GROUP BY r",
    "mask hides in a product": (
        "SELECT s.r, m.d, SUM(s.val * m.val) AS t FROM s JOIN m ON s.c = m.c "
        "WHERE abs(s.val) < 2 GROUP BY s.r, m.d"
    ),
    "mask on the other factor": (
        "SELECT s.r, m.d, SUM(s.val * m.val) AS t FROM s JOIN m ON s.c = m.c "
        "WHERE m.val > 0 GROUP BY s.r, m.d"
    ),
    "product": (
        "SELECT s.r, m.d, SUM(s.val * m.val) AS t FROM s JOIN m ON s.c = m.c GROUP BY s.r, m.d"
    ),
    "dims mask": (
        "SELECT s.r, m.d, SUM(s.val * m.val) AS t FROM s JOIN m ON s.c = m.c "
        "WHERE s.c <= s.r GROUP BY s.r, m.d"
    ),
    "overflow": "SELECT SUM(n) AS s, MIN(n) AS l, MAX(n) AS h FROM big",
    "overflow in arithmetic": "SELECT r, n + n AS d, n * 3 AS t, -n AS m FROM big",
    "integer average": "SELECT AVG(n) AS a FROM big WHERE n < 2 AND n > -2",
    "float32": "SELECT SUM(val) AS s, MAX(val) AS h, AVG(val) AS a FROM single",
    "float32 arithmetic": "SELECT r, val * 3 AS t, val * val AS q, val = 1.0 / 3 AS e FROM single",
    "signed zeros are two keys": "SELECT z.q, p.q AS w FROM zeros z JOIN plain p ON z.z = p.z",
    "signed zero literal": "SELECT q FROM zeros WHERE z = 0.0",
    "signed zero union": (
        "SELECT z, SUM(q) AS s FROM (SELECT * FROM zeros UNION ALL SELECT * FROM plain) u GROUP BY "
        "z"
    ),
}


@pytest.mark.parametrize("sql", QUERIES.values(), ids=QUERIES.keys())
def test_special_values(specials, sql):
    specials.agree(sql)


def test_a_sum_is_as_close_as_its_magnitudes_allow(specials):
    total = specials.compact.sql("SELECT SUM(val) AS s FROM ordered").to_torch()["s"]
    assert abs(float(total) - 2.0) <= 2e16 * 4 * np.finfo(float).eps


@pytest.mark.parametrize("row", range(6))
def test_extremes_are_in_total_order(specials, row):
    # Without GROUP BY: DataFusion's grouped accumulators skip NaN and start from the largest
    # finite number, so of only infinities they answer 1.8e308.
    specials.agree(f"SELECT MIN(val) AS l, MAX(val) AS h FROM s WHERE r = {row}")


def test_extremes_of_a_union_are_in_total_order(specials):
    specials.agree(
        "SELECT MIN(v) AS l, MAX(v) AS h FROM (SELECT val AS v FROM s WHERE w > 0 "
        "UNION ALL SELECT a FROM p WHERE a = b)"
    )


def test_an_infinity_meets_each_term_of_a_sum(engines_over):
    # Summed over k alone first, infinity would meet 0 + 0 + 1 and not each of them.
    engines = engines_over(
        {
            "f": xr.Dataset({"v": (("i", "j"), np.array([[0.0, 0.0], [0.0, np.inf]]))}),
            "g": xr.Dataset({"v": (("j", "k"), np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))}),
            "h": xr.Dataset({"v": (("k",), np.array([1.0, 2.0, 0.0]))}),
        }
    )
    engines.agree("SELECT f.i, SUM(f.v * g.v) AS s FROM f JOIN g ON f.j = g.j GROUP BY f.i")
    engines.agree(
        "SELECT f.i, SUM(f.v * g.v * h.v) AS s FROM f JOIN g ON f.j = g.j JOIN h ON g.k = h.k "
        "GROUP BY f.i"
    )

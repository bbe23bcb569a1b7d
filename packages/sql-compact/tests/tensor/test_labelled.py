"""Simplifications hold for every value; diagonals are pushed to the leaves."""

import numpy as np
import pytest
from sql_compact.dtypes import DType
from sql_compact.tensor.graph import Op, topological
from sql_compact.tensor.labelled import Axis

SPECIAL = np.array([np.nan, np.inf, -0.0])


def number(bench, value, dtype=DType.FLOAT64):
    return bench.builder.constant(value, dtype)


KEPT = {
    "times one": lambda b, x: b.map("multiply", x, number(b, 1.0)),
    "one times": lambda b, x: b.map("multiply", number(b, 1.0), x),
    "by one": lambda b, x: b.map("divide", x, number(b, 1.0)),
    "plus the tangent's zero": lambda b, x: b.map("add", x, b.builder.tangent_zero(x.dtype)),
    "same in both branches": lambda b, x: b.map("where", b.input("p", b.i, dtype=DType.BOOL), x, x),
    "where true": lambda b, x: b.map("where", number(b, True, DType.BOOL), x, b.zero()),
    "slice of another axis": lambda b, x: b.builder.slice(x, b.k, 2),
}

#: Equalities of numbers that NaN, infinity or a signed zero break.
NOT_SIMPLIFIED = {
    "times zero": lambda b, x: b.map("multiply", x, b.zero()),
    "minus itself": lambda b, x: b.map("subtract", x, x),
    "plus zero": lambda b, x: b.map("add", x, b.zero()),
    "by itself": lambda b, x: b.map("divide", x, x),
    "equal to itself": lambda b, x: b.map("equal", x, x),
}


@pytest.mark.parametrize("build", KEPT.values(), ids=KEPT.keys())
def test_is_the_value_itself(bench, build):
    x = bench.input("x", bench.i)
    assert build(bench, x).node is x.node


@pytest.mark.parametrize("build", NOT_SIMPLIFIED.values(), ids=NOT_SIMPLIFIED.keys())
def test_is_computed(bench, build):
    x = bench.input("x", bench.i)
    result = build(bench, x)
    assert result.node.op is Op.MAP and x.node in {o.node for o in result.node.operands}


def test_adding_zero_matters_to_a_signed_zero(bench):
    x = bench.input("x", bench.i)
    value = bench.evaluate(bench.map("add", x, bench.zero()), (bench.i,), {"x": SPECIAL})
    assert not np.signbit(value[2])


def test_anything_times_the_tangents_zero_is_it(bench):
    x, zero = bench.input("x", bench.i), bench.builder.tangent_zero(DType.FLOAT64)
    assert bench.map("multiply", x, zero).node is zero.node


def test_constants_fold_as_torch_computes_them(bench):
    three = bench.map("add", number(bench, 1, DType.INT64), number(bench, 2, DType.INT64))
    assert three.node is number(bench, 3, DType.INT64).node
    assert number(bench, 0.0).node is not number(bench, -0.0).node


def test_masks_known_from_coordinates_vanish(bench):
    b = bench.builder
    everywhere = b.map("gte", b.iota(bench.i), number(bench, 0, DType.INT64))
    nowhere = b.map("gt", b.iota(bench.i), number(bench, 5, DType.INT64))
    assert b.known_mask(everywhere) is None
    assert b.is_never(nowhere) and not b.is_never(everywhere)
    value = bench.input("p", bench.i, dtype=DType.BOOL)
    assert b.known_mask(value) is value and not b.is_never(value)


def equated(bench, build):
    """A tensor over p and q, its diagonal by rename, and numpy's diagonal of its value."""
    p, q = Axis("p", bench.i.domain), Axis("q", bench.i.domain)
    tensor = build(bench, p, q)
    return tensor, bench.builder.rename(tensor, {q: p}), p, q


DIAGONALS = {
    "of a product": lambda b, p, q: b.map("multiply", b.input("x", p), b.input("y", q)),
    "of an input": lambda b, p, q: b.input("m", p, q),
    "of a contraction": lambda b, p, q: b.builder.contract(
        [b.input("a", p, b.j), b.input("c", q, b.j)], [b.j]
    ),
    "of a reduction": lambda b, p, q: b.sum(
        b.map("add", b.input("a", p, b.j), b.input("c", q, b.j)), b.j
    ),
    "of a gather": lambda b, p, q: b.builder.gather(
        b.input("t", b.k, q), b.k, b.input("n", p, dtype=DType.INT64)
    ),
}


@pytest.mark.parametrize(("name", "build"), DIAGONALS.items(), ids=DIAGONALS.keys())
def test_a_diagonal_is_pushed_to_the_leaves(bench, name, build):
    tensor, diagonal, p, q = equated(bench, build)
    rng = np.random.default_rng(8)
    shapes = {"x": (3,), "y": (3,), "m": (3, 3), "a": (3, 4), "c": (3, 4), "t": (5, 3)}
    arrays = {k: rng.normal(size=s) for k, s in shapes.items()} | {"n": rng.integers(0, 5, 3)}
    whole = bench.evaluate(tensor, (p, q), arrays)
    np.testing.assert_allclose(bench.evaluate(diagonal, (p,), arrays), whole.diagonal(), rtol=1e-14)
    computed = [n for n in topological([diagonal.node]) if n.operands and n.op is not Op.DIAGONAL]
    # Nothing over both axes is computed any more.
    assert all(n.shape.count(3) <= 1 for n in computed), name

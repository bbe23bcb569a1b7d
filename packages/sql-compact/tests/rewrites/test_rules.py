"""Each rule before and after, where it must not apply, and that values stay the same."""

import numpy as np
import pytest
from sql_compact.dtypes import DType
from sql_compact.rewrites import rewrite
from sql_compact.rewrites.contractions import CONTRACTIONS
from sql_compact.rewrites.dropout import DROPOUT
from sql_compact.rewrites.engine import Rewriter
from sql_compact.rewrites.extremes import EXTREMES, compared
from sql_compact.rewrites.placement import PLACEMENT, place
from sql_compact.rewrites.sums import SUMS
from sql_compact.tensor.graph import Op, topological

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0])


def after(bench, stage, tensor, exact=False):
    (result,) = Rewriter(bench.builder, exact=exact).run(stage, [tensor])
    return result


def untouched(bench, stage, tensor, exact=False):
    result = after(bench, stage, tensor, exact)
    return result.node is tensor.node and result.axes == tensor.axes


def random(rng, *shape, special=False):
    values = rng.normal(size=shape)
    if special:
        hits = rng.random(shape) < 0.3
        values[hits] = rng.choice(SPECIAL, size=shape)[hits]
    return values


@pytest.fixture
def rng():
    return np.random.default_rng(11)


@pytest.fixture
def arrays(rng, bench):
    """Inputs by name; p and q are masks, those that end in 0 hold NaN and infinities."""
    i, j, k = bench.i.size, bench.j.size, bench.k.size
    values = {
        "ij": (i, j),
        "jk": (j, k),
        "kj": (k, j),
        "i": (i,),
        "j": (j,),
        "k": (k,),
        "kl": (k, bench.layer.size),
    }
    result = {name: random(rng, *shape) for name, shape in values.items()}
    result |= {f"{name}0": random(rng, *shape, special=True) for name, shape in values.items()}
    result |= {f"p{name}": rng.random(shape) < 0.5 for name, shape in values.items()}
    return result | {"n": rng.integers(-9, 9, i), "m": rng.integers(-9, 9, i)}


# --- dropout --------------------------------------------------------------------------


def mask(bench, *indices):
    scalars = [bench.builder.constant(0.25, DType.FLOAT64)]
    scalars += [bench.builder.constant(value, DType.INT64) for value in (7, 3, 2)]
    return bench.map(f"dropout_keep_{len(indices)}", *scalars, *indices)


def test_a_mask_over_whole_axes_is_generated_at_once(bench):
    before = mask(bench, bench.builder.iota(bench.i), bench.builder.iota(bench.j))
    result = after(bench, DROPOUT, before)
    ops = {o.node.op for o in result.node.operands for o in (o, *o.node.operands)}
    assert Op.DROPOUT in ops
    bench.same(before, result, {}, rtol=0)


def test_a_mask_in_another_order_of_axes_is_the_same_stream(bench):
    before = mask(bench, bench.builder.iota(bench.j), bench.builder.iota(bench.i))
    bench.same(before, after(bench, DROPOUT, before), {}, rtol=0)


def test_a_mask_over_computed_or_equal_indices_stays_elementwise(bench):
    i = bench.builder.iota(bench.i)
    shifted = bench.map("add", i, bench.builder.constant(1, DType.INT64))
    assert untouched(bench, DROPOUT, mask(bench, i, shifted))
    assert untouched(bench, DROPOUT, mask(bench, i, i))


# --- placement ------------------------------------------------------------------------


def at_layer(bench, position):
    index = bench.builder.constant(position, DType.INT64)
    return bench.map("equal", bench.builder.iota(bench.layer), index)


def test_a_value_at_one_position_is_placed(bench, arrays):
    x = bench.input("ij0", bench.i, bench.j)
    before = bench.masked(at_layer(bench, 2), x)
    result = after(bench, PLACEMENT, before)
    expected = place(Rewriter(bench.builder), x, bench.layer, 2)
    assert (result.node, result.axes) == (expected.node, expected.axes)
    bench.same(before, result, arrays, rtol=0)


def test_further_masks_stay_with_the_value(bench, arrays):
    x, p = bench.input("ij0", bench.i, bench.j), bench.input("pi", bench.i, dtype=DType.BOOL)
    before = bench.masked(bench.map("and", at_layer(bench, 1), p), x)
    result = after(bench, PLACEMENT, before)
    assert result.node.op is Op.PLACE
    assert result.node.operands[0].node is bench.masked(p, x).node
    bench.same(before, result, arrays, rtol=0)


def test_a_value_that_varies_along_the_axis_is_not_placed(bench):
    x = bench.input("x", bench.layer, bench.i)
    assert untouched(bench, PLACEMENT, bench.masked(at_layer(bench, 1), x))


def test_a_value_with_another_alternative_is_not_placed(bench):
    x = bench.input("x", bench.i)
    one = bench.builder.constant(1.0, DType.FLOAT64)
    assert untouched(bench, PLACEMENT, bench.map("where", at_layer(bench, 1), x, one))
    negative = bench.builder.constant(-0.0, DType.FLOAT64)
    assert untouched(bench, PLACEMENT, bench.map("where", at_layer(bench, 1), x, negative))


def test_a_mask_around_a_sum_of_the_rows_it_says_exist_goes(bench, arrays):
    p, x = (
        bench.input("pij", bench.i, bench.j, dtype=DType.BOOL),
        bench.input("ij0", bench.i, bench.j),
    )
    total = bench.sum(bench.masked(p, x), bench.j)
    exists = bench.builder.reduce("any", p, [bench.j])
    before = bench.masked(exists, total)
    result = after(bench, PLACEMENT, before)
    assert result.node is total.node
    bench.same(before, result, arrays, rtol=0)


def test_a_mask_around_a_sum_of_other_rows_stays(bench):
    p, x = (
        bench.input("pij", bench.i, bench.j, dtype=DType.BOOL),
        bench.input("ij", bench.i, bench.j),
    )
    q = bench.input("pi", bench.i, dtype=DType.BOOL)
    assert untouched(bench, PLACEMENT, bench.masked(q, bench.sum(bench.masked(p, x), bench.j)))
    exists = bench.builder.reduce("any", p, [bench.j])
    assert untouched(bench, PLACEMENT, bench.masked(exists, bench.sum(x, bench.j)))


# --- sums of terms ----------------------------------------------------------------------


def test_values_under_one_mask_are_added_first(bench, arrays):
    p = bench.input("pi", bench.i, dtype=DType.BOOL)
    a, b = bench.input("ij0", bench.i, bench.j), bench.input("i0", bench.i)
    before = bench.map("add", bench.masked(p, a), bench.masked(p, b))
    result = after(bench, SUMS, before)
    assert result.node is bench.masked(p, bench.map("add", a, b)).node
    bench.same(before, result, arrays, rtol=0)


def test_values_under_different_masks_are_not(bench):
    p, q = (bench.input(n, bench.i, dtype=DType.BOOL) for n in ("pi", "q"))
    a, b = bench.input("i", bench.i), bench.input("i0", bench.i)
    assert untouched(bench, SUMS, bench.map("add", bench.masked(p, a), bench.masked(q, b)))


def test_a_common_factor_is_taken_out(bench, arrays):
    a, b, m = (bench.input(n, bench.i, bench.j) for n in ("ij", "b", "m"))
    before = bench.map("add", bench.map("multiply", a, m), bench.map("multiply", b, m))
    result = after(bench, SUMS, before)
    assert result.node is bench.map("multiply", bench.map("add", a, b), m).node
    data = {n: np.random.default_rng(1).normal(size=(3, 4)) for n in ("ij", "b", "m")}
    bench.same(before, result, data, rtol=1e-12)


def test_sums_over_one_axis_are_one_sum(bench, arrays):
    a, b = bench.input("ij", bench.i, bench.j), bench.input("jk", bench.j, bench.k)
    c = bench.input("ij0", bench.i, bench.j)
    before = bench.map("add", bench.sum(a, bench.j), bench.sum(c, bench.j))
    result = after(bench, SUMS, before)
    assert result.node is bench.sum(bench.map("add", a, c), bench.j).node
    bench.same(before, result, arrays, rtol=1e-12)
    assert untouched(bench, SUMS, bench.map("add", bench.sum(a, bench.j), bench.sum(b, bench.k)))


def test_sums_of_products_without_a_common_factor_stay_contractions(bench):
    a, b, c, d = (bench.input(n, bench.i, bench.j) for n in "abcd")
    left = bench.sum(bench.map("multiply", a, b), bench.j)
    right = bench.sum(bench.map("multiply", c, d), bench.j)
    assert untouched(bench, SUMS, bench.map("add", left, right))


def test_placed_values_are_stacked(bench, arrays):
    r = Rewriter(bench.builder)
    a, b = bench.input("ij0", bench.i, bench.j), bench.input("i0", bench.i)
    left, right = place(r, a, bench.layer, 2), place(r, a, bench.layer, 0)
    before = bench.map("add", bench.map("add", left, right), place(r, b, bench.layer, 2))
    result = after(bench, SUMS, before)
    assert result.node.op is Op.STACK
    values = [o.node for o in result.node.operands]
    assert values[1] is bench.zero().node
    assert values[2] is bench.map("add", a, b).node
    bench.same(before, result, arrays, rtol=0)


def test_places_of_different_axes_are_not_stacked(bench):
    r = Rewriter(bench.builder)
    a = bench.input("j", bench.j)
    before = bench.map("add", place(r, a, bench.layer, 2), place(r, a, bench.i, 0))
    assert untouched(bench, SUMS, before)


@pytest.mark.parametrize("kind", ["sum", "mask", "factor"])
def test_integer_sums_are_not_reordered(bench, kind):
    a, b, m = (bench.input(n, bench.i, dtype=DType.INT64) for n in ("n", "m", "o"))
    p = bench.input("pi", bench.i, dtype=DType.BOOL)
    before = {
        "sum": lambda: bench.map("add", bench.sum(a, bench.i), bench.sum(b, bench.i)),
        "mask": lambda: bench.map("add", bench.masked(p, a), bench.masked(p, b)),
        "factor": lambda: bench.map(
            "add", bench.map("multiply", a, m), bench.map("multiply", b, m)
        ),
    }[kind]()
    assert untouched(bench, SUMS, before)


# --- contractions -----------------------------------------------------------------------


def product(bench, *factors):
    value = factors[0]
    for factor in factors[1:]:
        value = bench.map("multiply", value, factor)
    return value


def test_a_sum_of_a_product_is_a_contraction(bench, arrays):
    a, b = bench.input("ij0", bench.i, bench.j), bench.input("jk0", bench.j, bench.k)
    before = bench.sum(product(bench, a, b), bench.j)
    result = after(bench, CONTRACTIONS, before)
    assert result.node.op is Op.CONTRACT
    assert {o.node for o in result.node.operands} == {a.node, b.node}
    bench.same(before, result, arrays, rtol=1e-12)


def test_a_product_that_one_factor_covers_stays_elementwise(bench):
    a, b = bench.input("ij", bench.i, bench.j), bench.input("j", bench.j)
    assert untouched(bench, CONTRACTIONS, bench.sum(product(bench, a, b), bench.j))


def test_integer_products_stay_elementwise(bench):
    a = bench.input("n", bench.i, dtype=DType.INT64)
    b = bench.input("m", bench.j, dtype=DType.INT64)
    value = bench.map("multiply", product(bench, a, b), a)
    assert untouched(bench, CONTRACTIONS, bench.sum(value, bench.j))


def test_maxima_of_products_stay_elementwise(bench):
    a, b = bench.input("ij", bench.i, bench.j), bench.input("jk", bench.j, bench.k)
    assert untouched(
        bench, CONTRACTIONS, bench.builder.reduce("max", product(bench, a, b), [bench.j])
    )


def test_a_mask_goes_into_the_factor_that_has_its_axes(bench, arrays):
    a, b = bench.input("ij0", bench.i, bench.j), bench.input("jk", bench.j, bench.k)
    p = bench.input("pij", bench.i, bench.j, dtype=DType.BOOL)
    before = bench.sum(bench.masked(p, product(bench, a, b)), bench.j)
    rewriter = Rewriter(bench.builder)
    (result,) = rewriter.run(CONTRACTIONS, [before])
    assert {o.node for o in result.node.operands} == {bench.masked(p, a).node, b.node}
    # What it hides in b is multiplied by zero, so b must be finite; a need not be.
    assert list(rewriter.finite) == [b.node]
    bench.same(before, result, arrays, rtol=1e-12)


def test_a_mask_over_both_factors_is_a_factor(bench, arrays):
    a, b = bench.input("ij", bench.i, bench.j), bench.input("jk", bench.j, bench.k)
    p = bench.map("lt", bench.builder.iota(bench.i), bench.builder.iota(bench.k))
    p = bench.map("and", p, bench.input("pj", bench.j, dtype=DType.BOOL))
    before = bench.sum(bench.masked(p, product(bench, a, b)), bench.j)
    result = after(bench, CONTRACTIONS, before)
    bench.same(before, result, arrays, rtol=1e-12)


def test_a_mask_outside_the_summed_axes_goes_outside(bench, arrays):
    a, b = bench.input("ij0", bench.i, bench.j), bench.input("jk0", bench.j, bench.k)
    p = bench.input("pi", bench.i, dtype=DType.BOOL)
    before = bench.sum(bench.masked(p, product(bench, a, b)), bench.j)
    rewriter = Rewriter(bench.builder)
    (result,) = rewriter.run(CONTRACTIONS, [before])
    assert (result.node.op, result.node.attributes) == (Op.MAP, "where")
    assert not rewriter.finite
    bench.same(before, result, arrays, rtol=1e-12)


def test_the_exact_program_multiplies_nothing_hidden_by_zero(bench, arrays):
    a, b = bench.input("ij0", bench.i, bench.j), bench.input("jk0", bench.j, bench.k)
    p = bench.input("pij", bench.i, bench.j, dtype=DType.BOOL)
    before = bench.sum(bench.masked(p, product(bench, a, b)), bench.j)
    assert untouched(bench, CONTRACTIONS, before, exact=True)
    rewritten = rewrite(bench.builder, [before], exact=True)
    assert not rewritten.finite
    bench.same(before, rewritten.outputs[0], arrays, rtol=1e-12)


def test_three_factors_are_contracted_in_the_cheaper_order(bench, arrays):
    a, b = bench.input("ij", bench.i, bench.j), bench.input("jk", bench.j, bench.k)
    c = bench.input("kl", bench.k, bench.layer)
    before = bench.sum(product(bench, a, b, c), bench.j, bench.k)
    result = after(bench, CONTRACTIONS, before)
    bench.same(before, result, arrays, rtol=1e-12)
    # (4 × 5) · (5 × 3) first is 60 + 36 products; (3 × 4) · (4 × 5) first would be 60 + 45.
    contractions = [n for n in topological([result.node]) if n.op is Op.CONTRACT]
    assert {n.size for n in contractions} == {4 * 3, 3 * 3}


def test_constants_stay_outside(bench, arrays):
    a, b = bench.input("ij", bench.i, bench.j), bench.input("jk", bench.j, bench.k)
    half = bench.builder.constant(0.5, DType.FLOAT64)
    before = bench.sum(product(bench, a, b, half), bench.j)
    bench.same(before, after(bench, CONTRACTIONS, before), arrays, rtol=1e-12)


def test_an_outer_product_inside_is_not_stored(bench, arrays):
    a, b, c = (
        bench.input("i", bench.i),
        bench.input("k", bench.k),
        bench.input("kj", bench.k, bench.j),
    )
    before = bench.sum(product(bench, product(bench, a, b), c), bench.k)
    result = after(bench, CONTRACTIONS, before)
    bench.same(before, result, arrays, rtol=1e-12)
    sizes = [o.node.size for o in result.node.operands]
    assert max(sizes) <= bench.k.size * bench.j.size


# --- extremes ---------------------------------------------------------------------------


@pytest.mark.parametrize(("function", "expected"), [("max", np.nan), ("min", 1.0)])
def test_the_exact_extreme_is_in_total_order(bench, function, expected):
    x = bench.input("x", bench.i)
    before = bench.builder.reduce(function, x, [bench.i])
    result = after(bench, EXTREMES, before, exact=True)
    value = bench.evaluate(result, (), {"x": np.array([1.0, np.nan, 2.0])})
    np.testing.assert_equal(value.item(), expected)


def test_rows_a_mask_hides_are_behind_every_nan(bench):
    x, p = bench.input("x", bench.i), bench.input("p", bench.i, dtype=DType.BOOL)
    hidden = bench.builder.constant(np.inf, DType.FLOAT64)
    before = bench.builder.reduce("min", bench.map("where", p, x, hidden), [bench.i])
    result = after(bench, EXTREMES, before, exact=True)
    data = {"x": np.array([np.nan, 1.0, 2.0]), "p": np.array([True, False, False])}
    assert np.isnan(bench.evaluate(result, (), data).item())


def test_without_nan_the_extreme_stays_and_its_operand_is_listed(bench):
    x = bench.input("x", bench.i)
    before = bench.builder.reduce("max", x, [bench.i])
    assert untouched(bench, EXTREMES, before)
    assert compared([before.node]) == (x.node,)
    n = bench.input("n", bench.i, dtype=DType.INT64)
    whole = bench.builder.reduce("max", n, [bench.i])
    assert untouched(bench, EXTREMES, whole, exact=True)
    assert compared([whole.node]) == ()

"""Small factors first: before and after, where the rules must not apply, and equal values."""

import numpy as np
import pytest
from sql_compact.dtypes import DType
from sql_compact.rewrites.engine import Rewriter
from sql_compact.rewrites.layout import align_layouts
from sql_compact.rewrites.products import PRODUCTS
from sql_compact.tensor.graph import Op, Operand, topological


def after(bench, tensor):
    (result,) = Rewriter(bench.builder).run(PRODUCTS, [tensor])
    return result


def whole_operations(tensor):
    """Elementwise operations over all of the result's elements."""
    nodes = topological([tensor.node])
    return sum(n.op is Op.MAP and n.size == tensor.node.size for n in nodes)


@pytest.fixture
def arrays():
    rng = np.random.default_rng(5)
    shapes = {"x": (3, 4), "y": (3, 4), "r": (3,), "s": (3,), "w": (4,)}
    return {name: rng.uniform(0.5, 2.0, shape) for name, shape in shapes.items()}


@pytest.fixture
def x(bench):
    return bench.input("x", bench.i, bench.j)


def test_values_of_a_row_are_combined_before_they_meet_the_array(bench, x, arrays):
    r, s = bench.input("r", bench.i), bench.input("s", bench.i)
    before = bench.map("divide", bench.map("multiply", bench.map("divide", x, r), s), r)
    result = after(bench, before)
    assert (whole_operations(before), whole_operations(result)) == (3, 1)
    bench.same(before, result, arrays, rtol=1e-14)


def test_a_row_factor_leaves_a_product_of_arrays_and_a_sum(bench, x, arrays):
    y, r = bench.input("y", bench.i, bench.j), bench.input("r", bench.i)
    product = bench.map("multiply", bench.map("multiply", x, r), y)
    before = bench.sum(product, bench.j)
    result = after(bench, before)
    assert result.node.attributes == "multiply"
    bench.same(before, result, arrays, rtol=1e-14)


def test_a_negation_joins_the_constants(bench, x, arrays):
    two = bench.builder.constant(2.0, DType.FLOAT64)
    before = bench.map("multiply", bench.map("negate", x), two)
    result = after(bench, before)
    assert whole_operations(result) == 1
    bench.same(before, result, arrays, rtol=0)


def test_a_division_by_an_integer_stays_a_division(bench, x, arrays):
    eight = bench.builder.constant(8, DType.INT64)
    before = bench.map("divide", x, eight)
    bench.same(before, after(bench, before), arrays, rtol=0)


def test_factors_whose_product_is_as_large_stay_apart(bench, x):
    r, w = bench.input("r", bench.i), bench.input("w", bench.j)
    before = bench.map("multiply", bench.map("multiply", x, r), w)
    assert whole_operations(after(bench, before)) == 2


def test_integers_are_left_alone(bench):
    n = bench.input("n", bench.i, bench.j, dtype=DType.INT64)
    m = bench.input("m", bench.i, dtype=DType.INT64)
    before = bench.map("multiply", bench.map("multiply", n, m), m)
    assert after(bench, before).node is before.node


# --- layout ---------------------------------------------------------------------------


def stacked_product(bench):
    """Products (k, i) side by side along a new axis, scaled, beside an input in order (l, i, k)."""
    graph, size = bench.builder.graph, bench.layer.size
    parts = []
    for number in range(size):
        a = graph.input(f"a{number}", (3, 4), DType.FLOAT64)
        b = graph.input(f"b{number}", (4, 5), DType.FLOAT64)
        factors = [Operand(a, (1, 2)), Operand(b, (2, 0))]
        parts.append(graph.intern(Op.CONTRACT, factors, (5, 3), DType.FLOAT64))
    operands = [Operand(part, (1, 2)) for part in parts]
    stack = graph.intern(Op.STACK, operands, (size, 5, 3), DType.FLOAT64, 0)
    weight = graph.input("w", (size, 3, 5), DType.FLOAT64)
    both = [Operand(weight, (0, 1, 2)), Operand(stack, (0, 2, 1))]
    return graph.intern(Op.MAP, both, (size, 3, 5), DType.FLOAT64, "add")


def test_stacked_products_are_laid_out_like_the_input_they_meet(bench):
    from sql_compact.tensor.labelled import Tensor

    before = stacked_product(bench)
    (result,) = align_layouts(bench.builder.graph, [before])
    stacks = [n for n in topological([result]) if n.op is Op.STACK]
    assert [n.shape for n in stacks] == [(3, 3, 5)]
    rng = np.random.default_rng(6)
    arrays = {f"a{i}": rng.normal(size=(3, 4)) for i in range(3)}
    arrays |= {f"b{i}": rng.normal(size=(4, 5)) for i in range(3)}
    arrays["w"] = rng.normal(size=(3, 3, 5))
    axes = (bench.layer, bench.i, bench.k)
    bench.same(Tensor(before, axes), Tensor(result, axes), arrays, rtol=1e-14)


def test_products_that_meet_no_input_keep_their_layout(bench):
    stack = stacked_product(bench).operands[1].node
    assert align_layouts(bench.builder.graph, [stack]) == [stack]

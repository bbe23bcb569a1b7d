"""Sums of whole arrays that are added up in one go, and products that are stacked as they are."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sql_compact.dtypes import DType
from sql_compact.lowering.schedule import schedule
from sql_compact.lowering.torch_module import lower
from sql_compact.lowering.totals import find_totals, total
from sql_compact.precision import Precision
from sql_compact.tensor.graph import Graph, Op, Operand

SHAPES = st.lists(st.integers(0, 9), min_size=1, max_size=4)


@given(shapes=st.lists(SHAPES, min_size=1, max_size=5), seed=st.integers(0, 99))
def test_a_total_is_the_sum_of_all_elements(shapes, seed):
    rng = np.random.default_rng(seed)
    arrays = [
        torch.as_tensor(rng.normal(size=s)).permute(*rng.permutation(len(s)).tolist())
        for s in shapes
    ]
    expected = sum(float(a.sum()) for a in arrays)
    assert float(total(arrays, torch.float64)) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_total_shows_what_is_not_finite(bad):
    arrays = [torch.zeros(3, 400), torch.zeros(3, 400), torch.zeros(7)]
    arrays[1][2, 5] = bad
    assert not torch.isfinite(total(arrays, torch.float64))


def _sums(bench, count):
    arrays = [bench.map("exp", bench.input(f"x{n}", bench.i, bench.j)) for n in range(count)]
    return arrays, [bench.sum(a, bench.i, bench.j) for a in arrays]


def test_a_tree_of_additions_becomes_one_total(bench):
    arrays, (a, b, c) = _sums(bench, 3)
    root = bench.map("add", bench.map("add", a, b), c).node
    totals = find_totals(schedule([root]), [root])
    assert list(totals.found) == [root.index]
    assert set(totals.found[root.index].arrays) == {x.node for x in arrays}
    inner = next(o.node for o in root.operands if o.node is not c.node)
    assert totals.absorbed == {a.node.index, b.node.index, c.node.index, inner.index}


def test_a_sum_that_something_else_reads_stays(bench):
    _, (a, b) = _sums(bench, 2)
    outputs = [bench.map("add", a, b).node, a.node]
    assert not find_totals(schedule(outputs), outputs).found


def test_other_terms_are_added_to_the_total(bench):
    arrays, (a, b, c) = _sums(bench, 3)
    y = bench.input("y")
    scaled = bench.map("multiply", y, c)
    root = bench.map("add", bench.map("add", a, scaled), bench.map("add", b, y)).node
    found = find_totals(schedule([root]), [root]).found
    assert list(found) == [root.index]
    assert set(found[root.index].arrays) == {arrays[0].node, arrays[1].node}
    assert set(found[root.index].others) == {y.node, scaled.node}


def test_a_sum_that_is_rounded_to_integers_is_another_term(bench):
    _, (a, b, c) = _sums(bench, 3)
    whole = bench.map("cast:float64", bench.map("cast:int64", c))
    root = bench.map("add", bench.map("add", a, b), whole).node
    assert find_totals(schedule([root]), [root]).found[root.index].others == (whole.node,)


def test_programs_for_cuda_compute_totals(bench):
    _, (a, b, c) = _sums(bench, 3)
    other = bench.map("exp", bench.input("y"))
    root = bench.map("sqrt", bench.map("add", bench.map("add", a, other), bench.map("add", b, c)))
    root = root.node
    arrays = [torch.randn(3, 4, dtype=torch.float64) for _ in range(3)]
    arrays.append(torch.randn((), dtype=torch.float64))
    values = []
    for device in ("cpu", "cuda"):  # what is lowered for CUDA runs anywhere
        program = lower([root], torch.device(device), Precision.FLOAT64)
        calls = [n.target for n in program.module.graph.nodes if n.op == "call_function"]
        assert (total in calls) == (device == "cuda")
        values.append(float(program.module(*arrays)[0]))
    assert values[0] == pytest.approx(values[1], rel=1e-14)


def _product(graph, left, right):
    operands = [Operand(left, (0, 2)), Operand(right, (2, 1))]
    shape = (left.shape[0], right.shape[1])
    return graph.intern(Op.CONTRACT, operands, shape, DType.FLOAT32)


def _casts(program):
    code = program.module.code
    return code.count("torch.bfloat16"), code.count("torch.float32")


def test_an_input_read_in_slices_is_narrowed_once():
    graph = Graph(Precision.BFLOAT16)
    weights = graph.input("w", (3, 4, 5), DType.FLOAT32)
    x = graph.input("x", (2, 4), DType.FLOAT32)
    slices = [
        graph.intern(Op.SLICE, [Operand(weights, (0, 1, 2))], (4, 5), DType.FLOAT32, (0, n))
        for n in range(3)
    ]
    outputs = [_product(graph, x, s) for s in slices]
    arrays = [torch.randn(3, 4, 5), torch.randn(2, 4)]
    program = lower(outputs, torch.device("cpu"), Precision.BFLOAT16)
    assert _casts(program)[0] == 2
    for n, result in enumerate(program.module(*arrays)):
        expected = (arrays[1].bfloat16() @ arrays[0][n].bfloat16()).float()
        assert torch.equal(result, expected)
    some = lower(outputs[:2], torch.device("cpu"), Precision.BFLOAT16)
    assert _casts(some)[0] == 3


def test_products_are_stacked_before_they_are_widened():
    graph = Graph(Precision.BFLOAT16)
    inputs = [graph.input(f"x{n}", (4, 4), DType.FLOAT32) for n in range(3)]
    parts = [_product(graph, inputs[n], inputs[n]) for n in range(3)]
    operands = [Operand(p, (1, 2)) for p in parts]
    stacked = graph.intern(Op.STACK, operands, (3, 4, 4), DType.FLOAT32, 0)
    arrays = [torch.randn(4, 4) for _ in range(3)]
    program = lower([stacked], torch.device("cpu"), Precision.BFLOAT16)
    narrow = [a.bfloat16() for a in arrays]
    (result,) = program.module(*arrays)
    assert torch.equal(result, torch.stack([(a @ a).float() for a in narrow]))
    assert result.dtype is torch.float32


def test_rounded_factors_are_not_stacked_for_products():
    # A factor's bfloat16 form is rounded; the stack of the factors themselves is not.
    graph = Graph(Precision.BFLOAT16)
    inputs = [graph.input(f"x{n}", (4, 4), DType.FLOAT32) for n in range(2)]
    product = _product(graph, *inputs)
    stacked = graph.intern(
        Op.STACK, [Operand(x, (1, 2)) for x in inputs], (2, 4, 4), DType.FLOAT32, 0
    )
    arrays = [torch.randn(4, 4) for _ in range(2)]
    program = lower([product, stacked], torch.device("cpu"), Precision.BFLOAT16)
    assert torch.equal(program.module(*arrays)[1], torch.stack(arrays))

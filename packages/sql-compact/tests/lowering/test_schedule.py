"""Order of execution, and operations that are more than one torch call, against numpy."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sql_compact.dtypes import DType
from sql_compact.lowering.schedule import allocation, defer, schedule
from sql_compact.lowering.torch_module import lower
from sql_compact.precision import Precision
from sql_compact.tensor.graph import Graph, Op, Operand, topological


def peak(order, outputs):
    """Largest number of bytes alive at once when the nodes run in this order."""
    last = {}
    for step, node in enumerate(order):
        for operand in node.operands:
            last[operand.node.index] = step
    kept = {node.index for node in outputs}
    alive = most = 0
    for step, node in enumerate(order):
        alive += allocation(node)
        most = max(most, alive)
        for operand in {o.node for o in node.operands}:
            if last[operand.index] == step and operand.index not in kept:
                alive -= allocation(operand)
    return most


def test_every_node_runs_once_after_its_operands(bench):
    x = bench.input("x", bench.i, bench.j)
    y = bench.map("exp", x)
    outputs = [bench.sum(bench.map("multiply", y, x), bench.j).node, bench.sum(y, bench.i).node]
    order = schedule(outputs)
    assert sorted(n.index for n in order) == [n.index for n in topological(outputs)]
    seen = set()
    for node in order:
        assert {o.node.index for o in node.operands} <= seen
        seen.add(node.index)


def test_what_frees_memory_runs_early(bench):
    # A plan that computes ten arrays first and sums each of them last.
    arrays = [bench.map("exp", bench.input(f"x{n}", bench.i, bench.j)) for n in range(10)]
    outputs = [bench.sum(a, bench.i, bench.j).node for a in arrays]
    late, early = topological(outputs), schedule(outputs)
    size = arrays[0].node.size * 8
    assert peak(late, outputs) >= 10 * size
    assert peak(early, outputs) < 3 * size


def test_what_grows_waits_for_its_first_user(bench):
    # Ten arrays made of rows first, and each used once, after them.
    rows = [bench.input(f"r{n}", bench.i) for n in range(10)]
    grown = [bench.map("add", r, bench.input("x", bench.j)) for r in rows]
    total = bench.input("y", bench.i, bench.j)
    for array in grown:
        total = bench.map("add", total, array)
    outputs = [total.node]
    first = topological([array.node for array in grown])
    late = list({node.index: node for node in (*first, *topological(outputs))}.values())
    order = defer(late, outputs)
    assert sorted(n.index for n in order) == sorted(n.index for n in late)
    place = {node.index: i for i, node in enumerate(order)}
    for array in grown:
        users = [place[n.index] for n in order if array.node in [o.node for o in n.operands]]
        assert min(users) == place[array.node.index] + 1
    size = total.node.nbytes
    assert peak(late, outputs) >= 10 * size
    assert peak(order, outputs) <= 3 * size


def test_a_chain_of_any_length_is_deferred(bench):
    x = bench.input("x", bench.i)
    chain = [x]
    for _ in range(5000):
        chain.append(bench.map("exp", chain[-1]))
    # Nothing is freed: every element of the chain is read again at the end.
    outputs = [bench.map("sqrt", y).node for y in reversed(chain)]
    order = topological(outputs)
    assert sorted(n.index for n in defer(order, outputs)) == sorted(n.index for n in order)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_deferred_nodes_follow_their_operands(bench_of, data):
    bench = bench_of()
    axes = st.lists(st.sampled_from([bench.i, bench.j, bench.k]), unique=True)
    arrays = [bench.input(f"x{n}", *data.draw(axes)) for n in range(3)]
    for _ in range(data.draw(st.integers(1, 12))):
        pair = st.sampled_from(arrays)
        if data.draw(st.booleans()):
            arrays.append(bench.map("add", data.draw(pair), data.draw(pair)))
        else:
            arrays.append(bench.map("exp", data.draw(pair)))
    outputs = [data.draw(st.sampled_from(arrays)).node for _ in range(data.draw(st.integers(1, 3)))]
    plan = schedule(outputs)
    order = defer(plan, outputs)
    assert sorted(n.index for n in order) == sorted(n.index for n in plan)
    seen = set()
    for node in order:
        assert {o.node.index for o in node.operands} <= seen
        seen.add(node.index)


@pytest.mark.parametrize(
    "equation",
    [
        "ij,jk->ik",
        "ij,jk->ki",
        "bij,bjk->bik",
        "bij,bkj->ibk",
        "ij,ij->",
        "ij,ij->i",
        "i,j->ij",
        "i,j->ji",
        "ijl,jk->ik",
        "ij,jkl->ik",
        "bhid,bhjd->bhij",
        "btc,pdc->btpd",
    ],
)
def test_a_contraction_is_einsum(equation):
    terms, out = equation.split("->")
    left, right = terms.split(",")
    sizes = {letter: 2 + i for i, letter in enumerate(sorted(set(left + right)))}
    place = {x: i for i, x in enumerate(out)}
    for letter in left + right:
        place.setdefault(letter, len(place))
    rng = np.random.default_rng(3)
    a, b = (rng.normal(size=[sizes[x] for x in term]) for term in (left, right))
    graph = Graph(Precision.FLOAT64)
    operands = [
        Operand(graph.input(name, array.shape, DType.FLOAT64), tuple(place[x] for x in term))
        for name, array, term in (("a", a, left), ("b", b, right))
    ]
    shape = [sizes[x] for x in out]
    node = graph.intern(Op.CONTRACT, operands, shape, DType.FLOAT64)
    program = lower([node], torch.device("cpu"), Precision.FLOAT64)
    (result,) = program.module(torch.as_tensor(a), torch.as_tensor(b))
    np.testing.assert_allclose(result.numpy(), np.einsum(equation, a, b), rtol=1e-12)


@pytest.mark.parametrize("axes", [("i", "k"), ("k", "i"), ("j",), ()])
def test_a_gather_is_indexing(bench, axes):
    value = bench.input("v", bench.i, bench.k, bench.j)
    own = tuple({"i": bench.i, "j": bench.j, "k": bench.layer}[a] for a in axes)
    index = bench.input("n", *own, dtype=DType.INT64)
    rng = np.random.default_rng(4)
    arrays = {"v": rng.normal(size=(3, 5, 4)), "n": rng.integers(0, 5, [a.size for a in own])}
    order = tuple(dict.fromkeys((bench.i, bench.j, *own)))
    result = bench.evaluate(bench.builder.gather(value, bench.k, index), order, arrays)
    grids = np.meshgrid(*(np.arange(a.size) for a in order), indexing="ij")
    at = dict(zip(order, grids, strict=True))
    positions = arrays["n"][tuple(at[a] for a in own)]
    expected = arrays["v"][at[bench.i], positions, at[bench.j]]
    np.testing.assert_array_equal(result, np.broadcast_to(expected, result.shape))

"""Arithmetic in place changes no value, and nothing that is still needed."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
from sql_compact.dtypes import DType
from sql_compact.lowering.in_place import reuse_memory
from sql_compact.lowering.torch_module import lower
from sql_compact.precision import Precision
from sql_compact.tensor.graph import Graph, Node, Op, Operand

SHAPE = (3, 4)


class _Program:
    """Elementwise operations on one input of SHAPE, as nodes."""

    def __init__(self) -> None:
        self.graph = Graph(Precision.FLOAT64)
        self.x = self.graph.input("t.x", SHAPE, DType.FLOAT64)

    def map(self, function: str, *operands: Node) -> Node:
        read = [Operand(o, tuple(range(o.rank))) for o in operands]
        return self.graph.intern(Op.MAP, read, SHAPE, DType.FLOAT64, function)

    def number(self, value: float) -> Node:
        return self.graph.constant(value, DType.FLOAT64)


def _run(outputs: list[Node], x: torch.Tensor) -> tuple[list[torch.Tensor], list[object]]:
    lowered = lower(outputs, torch.device("cpu"), Precision.FLOAT64)
    targets = [n.target for n in lowered.module.graph.nodes if n.op == "call_function"]
    return list(lowered.module(x)), targets


def test_a_chain_runs_in_the_memory_of_its_first_result() -> None:
    p = _Program()
    y = p.map("add", p.map("exp", p.map("multiply", p.x, p.number(2.0))), p.number(1.0))
    x = torch.arange(12.0, dtype=torch.float64).reshape(SHAPE) / 7
    given = x.clone()
    (result,), targets = _run([y], x)
    assert targets == [operator.mul, torch.exp_, operator.iadd]
    assert torch.equal(result, torch.exp(given * 2) + 1)
    assert torch.equal(x, given)


def test_a_reciprocal_is_one_operation_in_memory_of_its_own() -> None:
    p = _Program()
    y = p.map("multiply", p.map("divide", p.number(1.0), p.x), p.number(3.0))
    x = torch.arange(1.0, 13.0, dtype=torch.float64).reshape(SHAPE)
    (result,), targets = _run([y], x)
    assert targets == [torch.reciprocal, operator.imul]
    assert torch.equal(result, 1.0 / torch.arange(1.0, 13.0, dtype=torch.float64).view(SHAPE) * 3)


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda p, d: [p.map("add", d, p.number(1.0)), d], id="an output"),
        pytest.param(
            lambda p, d: [p.map("multiply", p.map("add", d, p.number(1.0)), d)], id="read later"
        ),
    ],
)
def test_what_is_still_needed_stays(build: Callable[[_Program, Node], list[Node]]) -> None:
    p = _Program()
    doubled = p.map("multiply", p.x, p.number(2.0))
    outputs = build(p, doubled)
    x = torch.randn(SHAPE, dtype=torch.float64)
    results, targets = _run(outputs, x)
    expected = [(2 * x + 1) * 2 * x] if len(outputs) == 1 else [2 * x + 1, 2 * x]
    assert targets[:2] == [operator.mul, operator.add]
    for result, value in zip(results, expected, strict=True):
        torch.testing.assert_close(result, value, rtol=1e-15, atol=1e-15)


def test_an_operand_seen_in_two_orders_is_not_overwritten() -> None:
    graph = Graph(Precision.FLOAT64)
    x = graph.input("t.x", (3, 3), DType.FLOAT64)
    two = graph.constant(2.0, DType.FLOAT64)
    doubled = graph.intern(
        Op.MAP, [Operand(x, (0, 1)), Operand(two, ())], (3, 3), DType.FLOAT64, "multiply"
    )
    both = graph.intern(
        Op.MAP, [Operand(doubled, (0, 1)), Operand(doubled, (1, 0))], (3, 3), DType.FLOAT64, "add"
    )
    value = torch.randn(3, 3, dtype=torch.float64)
    (result,), targets = _run([both], value)
    assert operator.iadd not in targets
    assert torch.equal(result, 2 * value + (2 * value).T)


def test_an_unknown_function_may_return_what_it_was_given() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    doubled = graph.call_function(operator.mul, (x, 2.0))
    kept = graph.call_function(torch.Tensor.contiguous, (doubled,))
    added = graph.call_function(operator.add, (doubled, 1.0))
    graph.output((kept, added))
    node = _Program().x
    reuse_memory(graph, {doubled: node, added: node})
    assert added.target is operator.add

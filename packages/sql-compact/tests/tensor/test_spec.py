"""Each rule of the table refuses a node that breaks it, and names itself."""

import numpy as np
import pytest
from sql_compact.dtypes import DType
from sql_compact.precision import Precision
from sql_compact.tensor.graph import Graph, Node, Op, Operand, Scalar
from sql_compact.tensor.spec import RULES, IllegalProgram, check_program

F, N, B = DType.FLOAT64, DType.INT64, DType.BOOL


@pytest.fixture
def graph():
    return Graph(Precision.FLOAT64)


def x(graph, *shape, dtype=F):
    return graph.input(f"x{shape}{dtype}", shape, dtype)


def at(node, *axes):
    return Operand(node, axes)


ILLEGAL = {
    "too few axes": (
        lambda g: (Op.MAP, [at(x(g, 3, 4), 0)], (3,), F, "exp"),
        "an iteration axis for each axis",
    ),
    "axis twice": (
        lambda g: (Op.MAP, [at(x(g, 3, 3), 0, 0)], (3,), F, "exp"),
        "axes of an operand are distinct",
    ),
    "axis not of the space": (
        lambda g: (Op.MAP, [at(x(g, 3), -1)], (3,), F, "exp"),
        "only a gather",
    ),
    "negative size": (lambda g: (Op.INPUT, [], (-1,), F, "x"), "not negative"),
    "input without a name": (lambda g: (Op.INPUT, [], (3,), F, None), "it has a name"),
    "constant with axes": (lambda g: (Op.CONSTANT, [], (3,), F, Scalar.of(1.0)), "a scalar"),
    "constant without a value": (lambda g: (Op.CONSTANT, [], (), F, 1.0), "it has a value"),
    "data of another shape": (
        lambda g: (Op.DATA, [], (4,), F, g.data(np.zeros(3), F).attributes),
        "its shape is the array's",
    ),
    "data of another type": (
        lambda g: (Op.DATA, [], (3,), N, g.data(np.zeros(3), F).attributes),
        "its type is the array's",
    ),
    "data without an array": (lambda g: (Op.DATA, [], (3,), F, "x"), "it has an array"),
    "iota of two axes": (lambda g: (Op.IOTA, [], (3, 3), N), "one axis"),
    "iota of floats": (lambda g: (Op.IOTA, [], (3,), F), "int64"),
    "unknown function": (lambda g: (Op.MAP, [at(x(g, 3), 0)], (3,), F, "frobnicate"), "known"),
    "map of another size": (
        lambda g: (Op.MAP, [at(x(g, 3), 0)], (4,), F, "exp"),
        "output axes of their size",
    ),
    "map over an axis outside": (
        lambda g: (Op.MAP, [at(x(g, 3), 1)], (3,), F, "exp"),
        "output axes of their size",
    ),
    "map with a free axis": (
        lambda g: (Op.MAP, [at(x(g, 3), 0)], (3, 4), F, "exp"),
        "every output axis is an operand's",
    ),
    "map of another type": (
        lambda g: (Op.MAP, [at(x(g, 3), 0)], (3,), N, "exp"),
        "its function's result",
    ),
    "comparison that is a number": (
        lambda g: (Op.MAP, [at(x(g, 3), 0), at(x(g, 3), 0)], (3,), F, "lt"),
        "its function's result",
    ),
    "reduce of two": (
        lambda g: (Op.REDUCE, [at(x(g, 3), 0)] * 2, (), F, ("sum", (0,))),
        "has 1 operand",
    ),
    "reduce transposed": (
        lambda g: (Op.REDUCE, [at(x(g, 3, 4), 1, 0)], (4,), F, ("sum", (0,))),
        "own axes in order",
    ),
    "reduce of an unknown kind": (
        lambda g: (Op.REDUCE, [at(x(g, 3), 0)], (), F, ("product", (0,))),
        "sum, max, min, any or all",
    ),
    "reduce out of range": (
        lambda g: (Op.REDUCE, [at(x(g, 3), 0)], (), F, ("sum", (1,))),
        "distinct axes of the operand",
    ),
    "reduce of no axis": (
        lambda g: (Op.REDUCE, [at(x(g, 3), 0)], (3,), F, ("sum", ())),
        "distinct axes of the operand",
    ),
    "reduce keeps the axis": (
        lambda g: (Op.REDUCE, [at(x(g, 3), 0)], (3,), F, ("sum", (0,))),
        "without the reduced axes",
    ),
    "any of numbers": (
        lambda g: (Op.REDUCE, [at(x(g, 3), 0)], (), F, ("any", (0,))),
        "any and all are of booleans",
    ),
    "sum of booleans": (
        lambda g: (Op.REDUCE, [at(x(g, 3, dtype=B), 0)], (), B, ("sum", (0,))),
        "any and all are of booleans",
    ),
    "sum of another type": (
        lambda g: (Op.REDUCE, [at(x(g, 3, dtype=N), 0)], (), F, ("sum", (0,))),
        "its operands'",
    ),
    "contraction of one": (
        lambda g: (Op.CONTRACT, [at(x(g, 3), 0)], (3,), F),
        "has 2 operand",
    ),
    "contraction of two sizes": (
        lambda g: (Op.CONTRACT, [at(x(g, 3, 4), 0, 1), at(x(g, 5), 1)], (3,), F),
        "one size",
    ),
    "contraction with a free axis": (
        lambda g: (Op.CONTRACT, [at(x(g, 3), 0), at(x(g, 3), 0)], (3, 4), F),
        "every axis is an operand's",
    ),
    "contraction with a gap": (
        lambda g: (Op.CONTRACT, [at(x(g, 3, 4), 0, 5), at(x(g, 4), 5)], (3,), F),
        "without gaps",
    ),
    "contraction of integers": (
        lambda g: (Op.CONTRACT, [at(x(g, 3, dtype=N), 0)] * 2, (), N),
        "of floats",
    ),
    "gather of nothing": (
        lambda g: (Op.GATHER, [at(x(g, 3), 0), at(x(g, 3, dtype=N), 0)], (3,), F),
        "exactly one axis",
    ),
    "gather along two": (
        lambda g: (Op.GATHER, [at(x(g, 3, 3), -1, -1), at(x(g, 3, dtype=N), 0)], (3,), F),
        "distinct",
    ),
    "gather by floats": (
        lambda g: (Op.GATHER, [at(x(g, 3), -1), at(x(g, 4), 0)], (4,), F),
        "positions are integers",
    ),
    "gather of another size": (
        lambda g: (Op.GATHER, [at(x(g, 3), -1), at(x(g, 4, dtype=N), 0)], (5,), F),
        "output axes of their size",
    ),
    "gather with a free axis": (
        lambda g: (Op.GATHER, [at(x(g, 3), -1), at(x(g, 4, dtype=N), 0)], (4, 2), F),
        "every output axis is an operand's",
    ),
    "gather of another type": (
        lambda g: (Op.GATHER, [at(x(g, 3), -1), at(x(g, 4, dtype=N), 0)], (4,), N),
        "the value's",
    ),
    "slice outside": (
        lambda g: (Op.SLICE, [at(x(g, 3), 0)], (), F, (0, 3)),
        "position is on the axis",
    ),
    "slice keeps the axis": (
        lambda g: (Op.SLICE, [at(x(g, 3), 0)], (3,), F, (0, 1)),
        "without the axis",
    ),
    "place outside": (
        lambda g: (Op.PLACE, [at(x(g, 4), 1)], (3, 4), F, (0, 3)),
        "position is on the new axis",
    ),
    "place over its own axis": (
        lambda g: (Op.PLACE, [at(x(g, 3), 0)], (3, 4), F, (0, 1)),
        "other axes in order",
    ),
    "stack of too few": (
        lambda g: (Op.STACK, [at(x(g, 4), 1)] * 2, (3, 4), F, 0),
        "for each position",
    ),
    "stack over the new axis": (
        lambda g: (Op.STACK, [at(x(g, 3), 0)] * 3, (3, 4), F, 0),
        "no operand has the new axis",
    ),
    "diagonal of two sizes": (
        lambda g: (Op.DIAGONAL, [at(x(g, 3, 4), 0, 1)], (3,), F, (0, 1)),
        "two axes of one size",
    ),
    "diagonal dropping the first": (
        lambda g: (Op.DIAGONAL, [at(x(g, 3, 3), 0, 1)], (3,), F, (1, 0)),
        "two axes of one size",
    ),
    "dropout of an array": (
        lambda g: (Op.DROPOUT, [at(x(g, 3), 0), *[at(x(g))] * 3], (3,), B),
        "are scalars",
    ),
    "dropout of no axis": (lambda g: (Op.DROPOUT, [at(x(g))] * 4, (), B), "one to four axes"),
    "dropout of numbers": (lambda g: (Op.DROPOUT, [at(x(g))] * 4, (3,), F), "boolean"),
}


@pytest.mark.parametrize(("build", "rule"), ILLEGAL.values(), ids=ILLEGAL.keys())
def test_an_illegal_node_is_refused_by_its_rule(graph, build, rule):
    op, operands, shape, dtype, *attributes = build(graph)
    node = graph.intern(op, operands, shape, dtype, *attributes)
    with pytest.raises(IllegalProgram, match=rf"%{node.index}:{op.value}.*{rule}"):
        check_program([node])


def test_operands_come_before_their_users(graph):
    late = Node(5, Op.INPUT, (), (3,), F, "x")
    early = Node(2, Op.MAP, (at(late, 0),), (3,), F, "exp")
    with pytest.raises(IllegalProgram, match="created before their users"):
        check_program([early])


def test_arrays_follow_the_precision():
    graph = Graph(Precision.FLOAT32)
    wide = Node(0, Op.INPUT, (), (3,), F, "x")
    check_program([wide], Precision.FLOAT64)
    check_program([graph.input("x", (3,), F)], Precision.FLOAT32)
    with pytest.raises(IllegalProgram, match="precision's element type"):
        check_program([wide], Precision.FLOAT32)


def test_what_is_below_an_output_is_checked_too(graph):
    bad = graph.intern(Op.SLICE, [at(x(graph, 3), 0)], (), F, (0, 7))
    good = graph.intern(Op.MAP, [at(bad)], (), F, "exp")
    with pytest.raises(IllegalProgram, match=rf"%{bad.index}:slice"):
        check_program([good])


def test_every_operation_has_rules():
    assert set(RULES) == set(Op)
    assert all(RULES.values())


def test_a_legal_program_passes(graph):
    a, b = x(graph, 3, 4), x(graph, 4, 5)
    product = graph.intern(Op.CONTRACT, [at(a, 0, 2), at(b, 2, 1)], (3, 5), F)
    total = graph.intern(Op.REDUCE, [at(product, 0, 1)], (5,), F, ("sum", (0,)))
    taken = graph.intern(Op.GATHER, [at(total, -1), at(x(graph, 2, dtype=N), 0)], (2,), F)
    check_program([taken])

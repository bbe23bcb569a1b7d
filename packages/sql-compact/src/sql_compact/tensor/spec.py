"""Legality of a tensor program, as a table of rules for each operation.

The rules say what the rest of the package may rely on: how many operands an operation has,
along which axes of its iteration space they run, and what shape and element type come out.
Tests check whole programs against them after every rewrite pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..dtypes import DType
from ..precision import Precision
from .graph import Array, Node, Op, Operand, Scalar, topological
from .maps import map_function


class IllegalProgram(AssertionError):
    """A node breaks a rule: a mistake of the compiler, not of its user."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A property of every node of an operation, and the words for it."""

    text: str
    holds: Callable[[Node, Precision], bool]


def check_program(outputs: Iterable[Node], precision: Precision = Precision.FLOAT64) -> None:
    """Check every node that the outputs need.

    Raises:
        IllegalProgram: a node breaks a rule; both are named.
    """
    for node in topological(outputs):
        for rule in (*_EVERY_NODE, *RULES[node.op]):
            if not _holds(rule, node, precision):
                operands = ", ".join(f"{o.node!r}{list(o.axes)}" for o in node.operands)
                raise IllegalProgram(
                    f"{node!r}({operands}) {node.dtype.value} {node.attributes}: {rule.text}"
                )


def _holds(rule: Rule, node: Node, precision: Precision) -> bool:
    try:
        return bool(rule.holds(node, precision))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        # The node is not even of the form that the rule is about.
        return False


# --- what the rules are made of ---------------------------------------------------------


def _sizes_agree(operand: Operand, sizes: Mapping[int, int]) -> bool:
    """Each axis of the operand that is not gathered has its iteration axis's size."""
    pairs = zip(operand.axes, operand.node.shape, strict=True)
    return all(sizes[axis] == size for axis, size in pairs if axis >= 0)


def _contract_sizes(node: Node) -> dict[int, int]:
    """Sizes of a contraction's iteration axes: the output's, then what the operands say."""
    sizes = dict(enumerate(node.shape))
    for operand in node.operands:
        for axis, size in zip(operand.axes, operand.node.shape, strict=True):
            sizes.setdefault(axis, size)
    return sizes


def _used_axes(node: Node) -> set[int]:
    return {axis for operand in node.operands for axis in operand.axes}


def _count(count: int) -> Rule:
    return Rule(f"it has {count} operand(s)", lambda node, _: len(node.operands) == count)


def _in_place(node: Node, _: Precision) -> bool:
    return all(o.axes == tuple(range(o.node.rank)) for o in node.operands)


def _element(dtype: DType, node: Node, precision: Precision) -> bool:
    return node.dtype is precision.element(dtype, node.rank)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


_SAME_TYPE = Rule(
    "its element type is its operands'",
    lambda node, p: all(_element(o.node.dtype, node, p) for o in node.operands),
)
_OWN_ORDER = Rule("its operand runs along its own axes in order", _in_place)
_OUTPUT_SPACE = Rule(
    "operands run along output axes of their size",
    lambda node, _: all(_sizes_agree(o, dict(enumerate(node.shape))) for o in node.operands),
)

# --- the table ------------------------------------------------------------------------

_EVERY_NODE = (
    Rule(
        "operands are created before their users",
        lambda n, _: all(o.node.index < n.index for o in n.operands),
    ),
    Rule(
        "there is an iteration axis for each axis of an operand",
        lambda n, _: all(len(o.axes) == o.node.rank for o in n.operands),
    ),
    Rule(
        "the axes of an operand are distinct",
        lambda n, _: all(len(set(o.axes)) == len(o.axes) for o in n.operands),
    ),
    Rule("sizes are not negative", lambda n, _: all(size >= 0 for size in n.shape)),
    Rule(
        "only a gather has an axis that is not of the iteration space",
        lambda n, _: n.op is Op.GATHER or all(axis >= 0 for axis in _used_axes(n)),
    ),
    Rule(
        "arrays of floats have the precision's element type",
        lambda n, p: n.dtype is p.element(n.dtype, n.rank),
    ),
)


def _reduce_shape(node: Node, _: Precision) -> bool:
    axes = node.attributes[1]
    shape = node.operands[0].node.shape
    return node.shape == tuple(s for i, s in enumerate(shape) if i not in axes)


def _reduce_axes(node: Node, _: Precision) -> bool:
    axes = node.attributes[1]
    rank = node.operands[0].node.rank
    return len(axes) > 0 and len(set(axes)) == len(axes) and all(0 <= a < rank for a in axes)


def _reduce_type(node: Node, _: Precision) -> bool:
    boolean = node.operands[0].node.dtype.is_bool
    return boolean == (node.attributes[0] in ("any", "all"))


def _gather_axes(node: Node, _: Precision) -> bool:
    value, index = node.operands
    return value.axes.count(-1) == 1 and all(axis >= 0 for axis in index.axes)


def _slice_shape(node: Node, _: Precision) -> bool:
    return node.shape == _without(node.operands[0].node.shape, node.attributes[0])


def _slice_position(node: Node, _: Precision) -> bool:
    axis, position = node.attributes
    return 0 <= position < node.operands[0].node.shape[axis]


def _place_position(node: Node, _: Precision) -> bool:
    axis, position = node.attributes
    return 0 <= axis < node.rank and 0 <= position < node.shape[axis]


def _place_axes(node: Node, _: Precision) -> bool:
    others = tuple(i for i in range(node.rank) if i != node.attributes[0])
    return node.operands[0].axes == others


def _diagonal_axes(node: Node, _: Precision) -> bool:
    p, q = node.attributes
    shape = node.operands[0].node.shape
    return 0 <= p < q < len(shape) and shape[p] == shape[q] and node.shape == _without(shape, q)


def _attention_ranks(node: Node, _: Precision) -> bool:
    forward = node.attributes.result in ("y", "lse")
    ranks = (4, 4, 4) if forward else (4, 4, 3, 4, 4, 4)
    scalars = (0,) * 4 if node.attributes.dropout else ()
    return tuple(o.node.rank for o in node.operands) == ranks + scalars


RULES: Mapping[Op, tuple[Rule, ...]] = {
    Op.INPUT: (_count(0), Rule("it has a name", lambda n, _: isinstance(n.attributes, str))),
    Op.CONSTANT: (
        _count(0),
        Rule("it is a scalar", lambda n, _: n.shape == ()),
        Rule("it has a value", lambda n, _: isinstance(n.attributes, Scalar)),
    ),
    Op.DATA: (
        _count(0),
        Rule("it has an array", lambda n, _: isinstance(n.attributes, Array)),
        Rule("its shape is the array's", lambda n, _: n.shape == n.attributes.values.shape),
        Rule("its type is the array's", lambda n, _: n.attributes.values.dtype == n.dtype.numpy),
    ),
    Op.IOTA: (
        _count(0),
        Rule("it has one axis", lambda n, _: n.rank == 1),
        Rule("it counts in int64", lambda n, _: n.dtype is DType.INT64),
    ),
    Op.MAP: (
        Rule("its function is known", lambda n, _: map_function(str(n.attributes)) is not None),
        _OUTPUT_SPACE,
        Rule(
            "every output axis is an operand's, but for a broadcast",
            lambda n, _: n.attributes == "broadcast" or _used_axes(n) == set(range(n.rank)),
        ),
        Rule(
            "its element type is its function's result",
            lambda n, p: _element(
                map_function(str(n.attributes)).result([o.node.dtype for o in n.operands]), n, p
            ),
        ),
    ),
    Op.REDUCE: (
        _count(1),
        _OWN_ORDER,
        Rule(
            "its function is sum, max, min, any or all",
            lambda n, _: n.attributes[0] in ("sum", "max", "min", "any", "all"),
        ),
        Rule("reduced axes are distinct axes of the operand", _reduce_axes),
        Rule("its shape is the operand's without the reduced axes", _reduce_shape),
        Rule("any and all are of booleans, the others are not", _reduce_type),
        _SAME_TYPE,
    ),
    Op.CONTRACT: (
        _count(2),
        Rule(
            "axes of one number have one size",
            lambda n, _: all(_sizes_agree(o, _contract_sizes(n)) for o in n.operands),
        ),
        Rule(
            "every axis is an operand's, numbered without gaps",
            lambda n, _: _used_axes(n) == set(range(len(_contract_sizes(n)))),
        ),
        Rule("it is of floats", lambda n, _: n.dtype.is_float),
        Rule(
            "its element type is its operands' product's",
            lambda n, p: _element(
                map_function("multiply").result([o.node.dtype for o in n.operands]), n, p
            ),
        ),
    ),
    Op.GATHER: (
        _count(2),
        Rule("exactly one axis of the value is gathered, none of the index", _gather_axes),
        _OUTPUT_SPACE,
        Rule(
            "every output axis is an operand's",
            lambda n, _: _used_axes(n) - {-1} == set(range(n.rank)),
        ),
        Rule("positions are integers", lambda n, _: n.operands[1].node.dtype.is_integer),
        Rule(
            "its element type is the value's", lambda n, p: _element(n.operands[0].node.dtype, n, p)
        ),
    ),
    Op.SLICE: (
        _count(1),
        _OWN_ORDER,
        Rule("its shape is the operand's without the axis", _slice_shape),
        Rule("its position is on the axis", _slice_position),
        _SAME_TYPE,
    ),
    Op.PLACE: (
        _count(1),
        Rule("its position is on the new axis", _place_position),
        Rule("its operand runs along the other axes in order", _place_axes),
        _OUTPUT_SPACE,
        _SAME_TYPE,
    ),
    Op.STACK: (
        Rule(
            "there is an operand for each position of the new axis",
            lambda n, _: len(n.operands) == n.shape[n.attributes],
        ),
        Rule("no operand has the new axis", lambda n, _: n.attributes not in _used_axes(n)),
        _OUTPUT_SPACE,
        _SAME_TYPE,
    ),
    Op.DIAGONAL: (
        _count(1),
        _OWN_ORDER,
        Rule("it equates two axes of one size and drops the second", _diagonal_axes),
        _SAME_TYPE,
    ),
    Op.DROPOUT: (
        _count(4),
        Rule(
            "p, seed, step and site are scalars",
            lambda n, _: all(o.node.rank == 0 for o in n.operands),
        ),
        Rule("it has one to four axes", lambda n, _: 1 <= n.rank <= 4),
        Rule("it is boolean", lambda n, _: n.dtype.is_bool),
    ),
    Op.ATTENTION: (
        Rule("operands have the ranks of its result", _attention_ranks),
        _OWN_ORDER,
        Rule("it is of floats", lambda n, _: n.dtype.is_float),
    ),
}

"""Arithmetic in place, where an operand's memory is not needed any more.

Without a compiler every operation on large arrays allocates its result, and the first touch
of fresh pages costs more than the arithmetic. What a sum, a difference, a product or a
quotient reads for the last time becomes its result. Values do not change: the same
operation runs on the same operands.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ..tensor.graph import Node, Op
from ..tensor.static import reduce_torch
from . import operations

_Function = Callable[..., Any]

#: Arithmetic and its form in place, and whether operands may be exchanged.
_IN_PLACE: Mapping[_Function, tuple[_Function, bool]] = {
    operator.add: (operator.iadd, True),
    operator.mul: (operator.imul, True),
    operator.sub: (operator.isub, False),
    operator.truediv: (operator.itruediv, False),
}
#: Functions of one float, by their name in the tensor program.
_UNARY: Mapping[str, _Function] = {"exp": torch.exp_, "erf": torch.erf_, "sqrt": torch.sqrt_}
#: Functions whose result is in memory of its own.
_FRESH = (*_IN_PLACE, torch.mm, torch.bmm, torch.reciprocal)
#: Functions whose result may be overwritten: it is dense, in memory that nobody else knows.
_OWNED = (*_FRESH, *(f for f, _ in _IN_PLACE.values()), *_UNARY.values())
#: Functions whose result may be a view of the first operand, without repeated elements.
_VIEWS = (torch.reshape, torch.permute)
#: Functions that read their operands and return something else, however it looks.
_READERS = (operations.gather, operations.stack, operations.place, torch.sum, reduce_torch)


@dataclass(slots=True)
class _Memory:
    """Where each value lies: the nodes whose memory it may share, and their last readers."""

    owners: dict[fx.Node, frozenset[fx.Node]]
    last: dict[fx.Node, fx.Node]
    fresh: Collection[fx.Node]


def reuse_memory(graph: fx.Graph, lowered: Mapping[fx.Node, Node]) -> None:
    """Put arithmetic of the graph in place.

    Args:
        lowered: the node of the tensor program that a value of the graph is.
    """
    unary = {
        v: _UNARY[n.attributes]
        for v, n in lowered.items()
        if n.op is Op.MAP and n.attributes in _UNARY
    }
    memory = _memory(graph, unary)
    for node in graph.nodes:
        if node in unary:
            if _is_last_use(node, node.args[0], None, memory, lowered):
                node.target = unary[node]
            continue
        if node.op != "call_function" or node.target not in _IN_PLACE or node not in lowered:
            continue
        function, exchangeable = _IN_PLACE[node.target]
        first, second = node.args
        if _is_last_use(node, first, second, memory, lowered):
            node.target = function
        elif exchangeable and _is_last_use(node, second, first, memory, lowered):
            node.target, node.args = function, (second, first)


def _memory(graph: fx.Graph, fresh: Collection[fx.Node]) -> _Memory:
    owners: dict[fx.Node, frozenset[fx.Node]] = {}
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        read = frozenset[fx.Node]().union(*(owners[a] for a in node.all_input_nodes))
        for owner in read:
            last[owner] = node
        own = frozenset({node})
        if node in fresh or (node.op == "call_function" and node.target in (*_FRESH, *_READERS)):
            owners[node] = own
        elif node.op == "call_function" and node.target in _VIEWS:
            owners[node] = read
        else:
            # Anything else may return what it was given, or keep it.
            owners[node] = read | own
    return _Memory(owners, last, fresh)


def _is_last_use(
    node: fx.Node,
    target: object,
    other: object,
    memory: _Memory,
    lowered: Mapping[fx.Node, Node],
) -> bool:
    """Whether the node may write its result where ``target`` lies."""
    if not isinstance(target, fx.Node) or target not in lowered:
        return False
    value, result = lowered[target], lowered[node]
    if not result.rank or value.shape != result.shape or value.dtype is not result.dtype:
        return False
    owners = memory.owners[target]
    if len(owners) != 1:
        return False
    (owner,) = owners
    if owner not in memory.fresh and owner.target not in _OWNED:
        return False
    if isinstance(other, fx.Node) and other is not target and owner in memory.owners[other]:
        return False
    return memory.last[owner] is node

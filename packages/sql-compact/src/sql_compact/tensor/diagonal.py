"""Diagonals: equate two axes of a node by pushing the equation to its leaves.

A join may equate two axes of something already computed: attention's transposed product
is planned over one key alone, with batch and head equated only by a later join. Taken
literally that is a product over six axes. Equating the axes of the operands instead
computes only the diagonal.
"""

from __future__ import annotations

from .graph import Graph, Node, Op, Operand


def diagonal(graph: Graph, node: Node, p: int, q: int) -> Node:
    """``node`` read where axis ``q`` equals axis ``p`` (p < q), without axis ``q``."""
    return _DIAGONALS.get(node.op, _leaf)(graph, node, p, q)


def _without(shape: tuple[int, ...], q: int) -> tuple[int, ...]:
    return shape[:q] + shape[q + 1 :]


def _merge(axis: int, p: int, q: int) -> int:
    """Where an axis of the iteration space goes once q is read at p."""
    return p if axis == q else axis - 1 if axis > q else axis


def _operands(graph: Graph, node: Node, p: int, q: int) -> list[Operand]:
    """The node's operands over the merged iteration space."""
    merged = []
    for operand in node.operands:
        inner, axes = operand.node, list(operand.axes)
        if p in axes and q in axes:
            i, j = sorted((axes.index(p), axes.index(q)))
            inner = diagonal(graph, inner, i, j)
            del axes[j]
            axes[i] = p
        merged.append(Operand(inner, tuple(_merge(a, p, q) for a in axes)))
    return merged


def _same_operation(graph: Graph, node: Node, p: int, q: int) -> Node:
    """Operations whose iteration space starts with their output axes."""
    operands = _operands(graph, node, p, q)
    return graph.intern(node.op, operands, _without(node.shape, q), node.dtype, node.attributes)


def _reduce(graph: Graph, node: Node, p: int, q: int) -> Node:
    function, axes = node.attributes
    kept = [i for i in range(node.operands[0].node.rank) if i not in axes]
    inner = diagonal(graph, node.operands[0].node, kept[p], kept[q])
    merged = tuple(_merge(a, kept[p], kept[q]) for a in axes)
    operand = Operand(inner, tuple(range(inner.rank)))
    shape = _without(node.shape, q)
    return graph.intern(Op.REDUCE, [operand], shape, node.dtype, (function, merged))


def _contract(graph: Graph, node: Node, p: int, q: int) -> Node:
    operands = _operands(graph, node, p, q)
    return graph.intern(node.op, operands, _without(node.shape, q), node.dtype)


def _leaf(graph: Graph, node: Node, p: int, q: int) -> Node:
    operand = Operand(node, tuple(range(node.rank)))
    return graph.intern(Op.DIAGONAL, [operand], _without(node.shape, q), node.dtype, (p, q))


_DIAGONALS = {
    Op.MAP: _same_operation,
    Op.GATHER: _same_operation,
    Op.REDUCE: _reduce,
    Op.CONTRACT: _contract,
}

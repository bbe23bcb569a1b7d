"""Estimate of the memory that a program needs."""

from __future__ import annotations

from collections.abc import Sequence

from ..tensor.graph import Node, Op
from .schedule import allocation, schedule

#: Operations whose result lies in their operand's memory.
_ALIASES = (Op.SLICE, Op.DIAGONAL)


def peak_bytes(outputs: Sequence[Node]) -> int:
    """Peak of the arrays alive at one time, in the order of execution, inputs included.

    Outputs and inputs live to the end, every other array until its last use. Workspaces of
    kernels and the allocator's rounding come on top.
    """
    order = schedule(outputs)
    last: dict[int, int] = {}
    for time, node in enumerate(order):
        for operand in node.operands:
            last[_owner(operand.node).index] = time
    kept = {_owner(node).index for node in outputs}
    held = sum(node.nbytes for node in order if node.op is Op.INPUT)
    peak = alive = held
    ending: dict[int, int] = {}
    for time, node in enumerate(order):
        size = allocation(node)
        alive += size
        peak = max(peak, alive)
        if node.index not in kept:
            end = last.get(node.index, time)
            ending[end] = ending.get(end, 0) + size
        alive -= ending.pop(time, 0)
    return peak


def _owner(node: Node) -> Node:
    """The node whose memory this one's result lies in."""
    while node.op in _ALIASES:
        node = node.operands[0].node
    return node

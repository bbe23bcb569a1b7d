"""Patterns that the forward and the backward pass share."""

from __future__ import annotations

from collections.abc import Sequence

from ...domain import Range
from ...tensor.graph import Node, Op
from ...tensor.labelled import Axis, Tensor
from ..engine import Rewriter, View
from ..patterns import match_map, match_masked


def single_sum_of_two(rewriter: Rewriter, node: Node) -> tuple[Tensor, View] | None:
    """A contraction of two operands over one axis, its axes labelled anew."""
    if node.op is not Op.CONTRACT or len(node.operands) != 2:
        return None
    out = Tensor(node, tuple(Axis("axis", Range(size)) for size in node.shape))
    view = rewriter.expose(out)
    return (out, view) if len(view.reduced) == 1 else None


def unmask(rewriter: Rewriter, tensor: Tensor) -> tuple[Tensor | None, Tensor]:
    masked = match_masked(rewriter, tensor)
    if masked is None:
        return None, tensor
    inner = match_masked(rewriter, masked[1])
    if inner is not None and inner[0] == masked[0]:
        return inner
    return masked


def causality(rewriter: Rewriter, mask: Tensor | None, i: Axis, j: Axis) -> bool | None:
    """Whether the mask is causal; None if it is another one."""
    if mask is None:
        return False
    for name, query, key in (("gte", 0, 1), ("lte", 1, 0)):
        operands = match_map(rewriter, mask, name)
        if operands is None:
            continue
        positions = all(t.node.op is Op.IOTA for t in operands)
        if positions and operands[query].axes == (i,) and operands[key].axes == (j,):
            return True
    return None


def single(values: Sequence) -> object | None:
    return values[0] if len(values) == 1 else None


def close(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-12 * abs(b)

"""The fused operations that take the place of what was recognized."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...tensor.graph import Node, Op, Operand
from ...tensor.labelled import Axis, Tensor, TensorBuilder
from ..engine import Rewriter
from .calls import AttentionCall, Forward

#: Makes the node that replaces another, given the new form of every node before it.
Replacement = Callable[[Mapping[int, Node]], Node]


def replace_forward(rewriter: Rewriter, forward: Forward) -> Replacement:
    b, h, i, _ = forward.labels

    def replacement(new: Mapping[int, Node]) -> Node:
        y = _call(rewriter, forward, new, "y", ())
        return _arranged(rewriter, y, (b, h, i, forward.width), forward.y.axes)

    return replacement


def replace_backward(
    rewriter: Rewriter,
    forward: Forward,
    result: str,
    dy: Tensor,
    labels: tuple[Axis, ...],
    out: Tensor,
    axes: tuple[Axis, ...],
) -> Replacement:
    """``dy`` is over (batch, head, i, width) and may be a node that is not in the program."""

    def replacement(new: Mapping[int, Node]) -> Node:
        y = _call(rewriter, forward, new, "y", ())
        lse = _call(rewriter, forward, new, "lse", ())
        computed = _call(rewriter, forward, new, result, (_renewed(rewriter, dy.node, new), y, lse))
        return _arranged(rewriter, computed, axes, out.axes)

    return replacement


def _renewed(rewriter: Rewriter, node: Node, new: Mapping[int, Node]) -> Node:
    """The new form of a node, or of a view made of one here."""
    if node.index in new:
        return new[node.index]
    operands = [Operand(new[o.node.index], o.axes) for o in node.operands]
    return rewriter.graph.intern(node.op, operands, node.shape, node.dtype, node.attributes)


def _arranged(
    rewriter: Rewriter, node: Node, axes: tuple[Axis, ...], wanted: tuple[Axis, ...]
) -> Node:
    if set(axes) != set(wanted):
        names = dict(
            zip(
                [a for a in axes if a not in wanted],
                [a for a in wanted if a not in axes],
                strict=True,
            )
        )
        axes = tuple(names.get(a, a) for a in axes)
    return rewriter.builder.arrange(Tensor(node, axes), wanted)


def _call(
    rewriter: Rewriter,
    forward: Forward,
    new: Mapping[int, Node],
    result: str,
    backward: tuple[Node, ...],
) -> Node:
    builder: TensorBuilder = rewriter.builder
    b, h, i, j = forward.labels

    def ordered(tensor: Tensor, position: Axis) -> Node:
        width = next(a for a in tensor.axes if a not in (b, h, position))
        return builder.arrange(Tensor(new[tensor.node.index], tensor.axes), (b, h, position, width))

    operands = [*backward, ordered(forward.q, i), ordered(forward.k, j), ordered(forward.v, j)]
    if forward.kept is not None:
        operands += [new[o.node.index] for o in forward.kept.operands]
    batch, heads, queries, keys = (a.size for a in forward.labels)
    width = forward.width.size
    shape = {
        "y": (batch, heads, queries, width),
        "lse": (batch, heads, queries),
        "dq": (batch, heads, queries, width),
        "dk": (batch, heads, keys, width),
        "dv": (batch, heads, keys, width),
    }[result]
    call = AttentionCall(result, forward.scale, forward.causal, forward.kept is not None)
    dtype = forward.y.dtype if result != "lse" else forward.total.dtype
    return rewriter.graph.intern(
        Op.ATTENTION, [Operand(n, tuple(range(n.rank))) for n in operands], shape, dtype, call
    )

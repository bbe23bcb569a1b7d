"""Rule on attention: softmax(scale · Q Kᵀ) · dropout · V and its backward, fused.

The user writes scores, maximum, exponential, sum, quotient and weighted sum as queries;
ddxdb writes their derivatives. Here the folded program is searched for that shape, in
any order of the products, and each is replaced by one ATTENTION operation that never
stores the scores. With p = e / z, e = exp(s - max s), z = sum e, M the dropout factor
and dP = dY Vᵀ, what is recognized as the cotangent of the scores is::

    dS = scale · (e · M · dP / z - e · sum(e · M · dP / z²))

The masks are causal (key position ≤ query position) or none at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...tensor.graph import Node, Operand, topological
from ...tensor.labelled import Tensor
from ..engine import Rewriter
from .backward import find_backward
from .calls import AttentionCall
from .forward import find_forward
from .replacing import Replacement, replace_forward


def fuse_attention(rewriter: Rewriter, outputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs with every recognized attention and its backward fused."""
    nodes = topological(t.node for t in outputs)
    forwards = [f for f in (find_forward(rewriter, n) for n in nodes) if f is not None]
    if not forwards:
        return list(outputs)
    replacements: dict[int, Replacement] = {}
    for forward in forwards:
        replacements[forward.y.node.index] = replace_forward(rewriter, forward)
    by_exponential = {f.exponential.node.index: f for f in forwards}
    for node in nodes:
        found = find_backward(rewriter, node, by_exponential)
        if found is not None:
            replacements[node.index] = found
    new = _substitute(rewriter, nodes, replacements)
    return [Tensor(new[t.node.index], t.axes) for t in outputs]


def _substitute(
    rewriter: Rewriter, nodes: Sequence[Node], replacements: Mapping[int, Replacement]
) -> dict[int, Node]:
    """Every node rebuilt over the replaced ones; shapes and axes stay as they are."""
    new: dict[int, Node] = {}
    for node in nodes:
        if node.index in replacements:
            new[node.index] = replacements[node.index](new)
            continue
        operands = [Operand(new[o.node.index], o.axes) for o in node.operands]
        new[node.index] = rewriter.graph.intern(
            node.op, operands, node.shape, node.dtype, node.attributes
        )
    return new


__all__ = ["AttentionCall", "fuse_attention"]

"""Recognizing the forward pass: softmax(scale · Q Kᵀ) · dropout · V."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...tensor.graph import Node, Op, scalar_value
from ...tensor.labelled import Axis, Tensor
from ..engine import Rewriter, View
from ..monomials import Monomial, monomial
from ..patterns import match, match_map, match_masked
from .calls import Forward
from .matching import causality, close, single, single_sum_of_two, unmask


def find_forward(rewriter: Rewriter, node: Node) -> Forward | None:
    """Attention, if the node is the weighted sum of the values."""
    found = single_sum_of_two(rewriter, node)
    if found is None:
        return None
    y, view = found
    for weights, v in (view.operands, view.operands[::-1]):
        forward = _weighted(rewriter, y, weights, v, view.reduced[0])
        if forward is not None:
            return forward
    return None


def _weighted(rewriter: Rewriter, y: Tensor, weights: Tensor, v: Tensor, j: Axis) -> Forward | None:
    mask, product = unmask(rewriter, weights)
    factors = monomial(rewriter, product)
    quotient = _softmax(rewriter, factors, j)
    if quotient is None:
        return None
    exponential, total, scores, scale = quotient
    rest = {t: p for t, p in factors.powers.items() if t not in (exponential, total)}
    i = single([a for a in y.axes if a not in v.axes and a in exponential.axes])
    width = single([a for a in v.axes if a not in exponential.axes])
    if i is None or width is None:
        return None
    kept = _dropout_factors(rewriter, rest, factors.coefficient)
    if kept is None:
        return None
    batch = [a for a in exponential.axes if a not in (i, j)]
    if kept[0] is not None:
        batch = [a for a in kept[0].axes if a not in (i, j)]
        if kept[0].axes != (*batch, i, j):
            return None
    causal = causality(rewriter, mask, i, j)
    if len(batch) != 2 or causal is None or set(v.axes) != {*batch, j, width}:
        return None
    q, k = _query_and_key(rewriter, scores, i, j, batch)
    if q is None or k is None or not _same_mask(rewriter, exponential, total, mask, j):
        return None
    return Forward(
        y,
        q,
        k,
        v,
        exponential,
        total,
        (batch[0], batch[1], i, j),
        width,
        scale,
        causal,
        {t.node: p for t, p in rest.items()},
        factors.coefficient,
        None if kept[0] is None else kept[0].node,
    )


def _softmax(
    rewriter: Rewriter, factors: Monomial, j: Axis
) -> tuple[Tensor, Tensor, Tensor, float] | None:
    """e, z, the product Q Kᵀ and the scale, if the factors hold exp(s - max s) / sum."""
    for exponential, power in factors.powers.items():
        exponent = match_map(rewriter, exponential, "exp")
        shifted = None if exponent is None else match_map(rewriter, exponent[0], "subtract")
        if power != 1 or shifted is None or j not in exponential.axes:
            continue
        if not _is_maximum(rewriter, shifted[1], shifted[0], j):
            continue
        scaled = monomial(rewriter, shifted[0])
        scores = single([t for t, p in scaled.powers.items() if p == 1])
        if scores is None or len(scaled.powers) != 1 or scores.node.op is not Op.CONTRACT:
            continue
        for total, inverse in factors.powers.items():
            if inverse == -1 and _is_sum_of(rewriter, total, exponential, j):
                return exponential, total, scores, scaled.coefficient
    return None


def _is_maximum(rewriter: Rewriter, maximum: Tensor, value: Tensor, j: Axis) -> bool:
    view = match(rewriter, maximum, Op.REDUCE)
    if view is None or view.attributes[0] != "max" or len(view.reduced) != 1:
        return False
    return _reduced_value(rewriter, view, j, hidden=-math.inf) == value


def _is_sum_of(rewriter: Rewriter, total: Tensor, value: Tensor, j: Axis) -> bool:
    view = match(rewriter, total, Op.REDUCE)
    if view is None or view.attributes[0] != "sum" or len(view.reduced) != 1:
        return False
    return _reduced_value(rewriter, view, j, hidden=0.0) == value


def _reduced_value(rewriter: Rewriter, view: View, j: Axis, hidden: float) -> Tensor | None:
    """What is reduced, with the reduced axis called ``j``, without its mask."""
    operand = view.operands[0]
    names = {view.reduced[0]: j}
    operand = Tensor(operand.node, tuple(names.get(a, a) for a in operand.axes))
    chosen = match_map(rewriter, operand, "where")
    if chosen is None:
        return operand
    other = chosen[2].node
    same = other.op is Op.CONSTANT and other.attributes.value == hidden
    return chosen[1] if same else None


def _same_mask(
    rewriter: Rewriter, exponential: Tensor, total: Tensor, mask: Tensor | None, j: Axis
) -> bool:
    """Whether the sum hides what the weights hide."""
    view = rewriter.expose(total)
    operand = view.operands[0]
    names = {view.reduced[0]: j}
    operand = Tensor(operand.node, tuple(names.get(a, a) for a in operand.axes))
    own = match_masked(rewriter, operand)
    return (None if own is None else own[0]) == mask


def _dropout_factors(
    rewriter: Rewriter, factors: Mapping[Tensor, int], coefficient: float
) -> tuple[Tensor | None] | None:
    """The DROPOUT mask among the factors ``mask / (1 - p)``; None if there are others.

    Where p is a literal, ``1 / (1 - p)`` is the product's coefficient.
    """
    if not factors:
        return (None,) if coefficient == 1.0 else None
    mask, scale = None, None
    for tensor, power in factors.items():
        inner = tensor
        if tensor.node.op is Op.MAP and str(tensor.node.attributes).startswith("cast:"):
            inner = rewriter.expose(tensor).operands[0]
        if inner.node.op is Op.DROPOUT and power == 1:
            mask = inner
        elif power == -1:
            scale = match_map(rewriter, tensor, "subtract")
    if mask is None:
        return None
    p = mask.node.operands[0].node
    literal = scalar_value(p)
    if literal is not None:
        known = len(factors) == 1 and close(coefficient, 1.0 / (1.0 - literal))
        return (mask,) if known else None
    if scale is None or len(factors) != 2 or coefficient != 1.0:
        return None
    return (mask,) if scalar_value(scale[0].node) == 1 and scale[1].node is p else None


def _query_and_key(
    rewriter: Rewriter, scores: Tensor, i: Axis, j: Axis, batch: Sequence[Axis]
) -> tuple[Tensor | None, Tensor | None]:
    view = rewriter.expose(scores)
    if len(view.operands) != 2 or len(view.reduced) != 1:
        return None, None
    query = single([t for t in view.operands if set(t.axes) == {*batch, i, view.reduced[0]}])
    key = single([t for t in view.operands if set(t.axes) == {*batch, j, view.reduced[0]}])
    return query, key

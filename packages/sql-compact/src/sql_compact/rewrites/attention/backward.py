"""Recognizing the backward pass: dQ, dK and dV of a forward pass that was found."""

from __future__ import annotations

from collections.abc import Mapping

from ...tensor.graph import Node, Op
from ...tensor.labelled import Axis, Tensor
from ..engine import Rewriter
from ..monomials import Monomial, expanded, monomial
from ..patterns import match, match_map, match_sum
from .calls import Forward
from .matching import causality, close, single, single_sum_of_two, unmask
from .replacing import Replacement, replace_backward


def find_backward(
    rewriter: Rewriter, node: Node, forwards: Mapping[int, Forward]
) -> Replacement | None:
    """The replacement of a node that is dQ, dK or dV of a recognized forward pass."""
    contraction = single_sum_of_two(rewriter, node)
    if contraction is None:
        return None
    out, view = contraction
    for large, other in (view.operands, view.operands[::-1]):
        found = _of_scores(rewriter, out, large, other, view.reduced[0], forwards)
        found = found or _of_values(rewriter, out, large, other, view.reduced[0], forwards)
        if found is not None:
            return found
    return None


def _of_scores(
    rewriter: Rewriter,
    out: Tensor,
    large: Tensor,
    other: Tensor,
    reduced: Axis,
    forwards: Mapping[int, Forward],
) -> Replacement | None:
    """dQ = dS K or dK = dSᵀ Q."""
    cotangent = _score_cotangent(rewriter, large, forwards)
    if cotangent is None:
        return None
    forward, labels, dy = cotangent
    b, h, i, j = labels
    width = single([a for a in other.axes if a not in labels])
    if width is None:
        return None
    if reduced is j and other == _relabel(forward.k, forward, labels, width):
        return replace_backward(rewriter, forward, "dq", dy, labels, out, (b, h, i, width))
    if reduced is i and other == _relabel(forward.q, forward, labels, width):
        return replace_backward(rewriter, forward, "dk", dy, labels, out, (b, h, j, width))
    return None


def _of_values(
    rewriter: Rewriter,
    out: Tensor,
    large: Tensor,
    dy: Tensor,
    reduced: Axis,
    forwards: Mapping[int, Forward],
) -> Replacement | None:
    """dV = (P · M)ᵀ dY."""
    mask, product = unmask(rewriter, large)
    factors = monomial(rewriter, product)
    located = _located(factors, forwards)
    if located is None:
        return None
    forward, labels = located
    b, h, i, j = labels
    if reduced is not i or not _is_kept(factors, forward, labels, {}, inverse=1):
        return None
    if not close(factors.coefficient, forward.kept_scale):
        return None
    if causality(rewriter, mask, i, j) is not forward.causal:
        return None
    width = single([a for a in dy.axes if a not in labels])
    if width is None:
        return None
    target = (b, h, j, width)
    ordered = rewriter.builder.arrange(dy, (b, h, i, width))
    return replace_backward(
        rewriter, forward, "dv", Tensor(ordered, (b, h, i, width)), labels, out, target
    )


def _score_cotangent(
    rewriter: Rewriter, tensor: Tensor, forwards: Mapping[int, Forward]
) -> tuple[Forward, tuple[Axis, ...], Tensor] | None:
    """The forward pass, its labels here, and dY, if the tensor is dS."""
    mask, value = unmask(rewriter, tensor)
    if match_map(rewriter, value, "add") is None and match_map(rewriter, value, "multiply") is None:
        return None
    terms = expanded(rewriter, value)
    if len(terms) != 2:
        return None
    for direct, indirect in (terms, terms[::-1]):
        found = _two_terms(rewriter, direct, indirect, mask, forwards)
        if found is not None:
            return found
    return None


def _two_terms(
    rewriter: Rewriter,
    direct: Monomial,
    indirect: Monomial,
    mask: Tensor | None,
    forwards: Mapping[int, Forward],
) -> tuple[Forward, tuple[Axis, ...], Tensor] | None:
    located = _located(direct, forwards)
    if located is None:
        return None
    forward, labels = located
    _, _, i, j = labels
    if causality(rewriter, mask, i, j) is not forward.causal:
        return None
    product = _cotangent_product(rewriter, direct, forward, labels)
    if product is None or not _is_kept(direct, forward, labels, {product[0]: 1}, inverse=1):
        return None
    e = _relabelled(forward.exponential, forward, labels)
    correction = single([t for t in indirect.powers if t != e])
    if correction is None or indirect.powers != {e: 1, correction: 1}:
        return None
    coefficient = indirect.coefficient
    inner = monomial(rewriter, correction)
    if len(inner.powers) == 1:
        coefficient *= inner.coefficient
        correction = next(iter(inner.powers))
    summed = match_sum(rewriter, correction)
    if summed is None or len(summed[1]) != 1:
        return None
    value = Tensor(summed[0].node, tuple(j if a is summed[1][0] else a for a in summed[0].axes))
    own, value = unmask(rewriter, value)
    weighted = monomial(rewriter, value)
    if causality(rewriter, own, i, j) is not forward.causal:
        return None
    if not _is_kept(weighted, forward, labels, {product[0]: 1}, inverse=2):
        return None
    expected = forward.scale * forward.kept_scale
    if not close(direct.coefficient, expected):
        return None
    if not close(coefficient * weighted.coefficient, -expected):
        return None
    return forward, labels, product[1]


def _located(
    factors: Monomial, forwards: Mapping[int, Forward]
) -> tuple[Forward, tuple[Axis, ...]] | None:
    """The forward pass whose e is a factor, and the labels that its axes have here."""
    for tensor, power in factors.powers.items():
        forward = forwards.get(tensor.node.index)
        if forward is not None and power == 1:
            here = dict(zip(forward.exponential.axes, tensor.axes, strict=True))
            return forward, tuple(here[a] for a in forward.labels)
    return None


def _cotangent_product(
    rewriter: Rewriter, factors: Monomial, forward: Forward, labels: tuple[Axis, ...]
) -> tuple[Tensor, Tensor] | None:
    """dP = dY Vᵀ among the factors, and dY over (batch, head, i, width)."""
    b, h, i, _ = labels
    for tensor in factors.powers:
        view = match(rewriter, tensor, Op.CONTRACT)
        if view is None or len(view.operands) != 2 or len(view.reduced) != 1:
            continue
        width = view.reduced[0]
        v = _relabel(forward.v, forward, labels, width)
        for value, dy in (view.operands, view.operands[::-1]):
            if value == v and set(dy.axes) == {b, h, i, width}:
                order = (b, h, i, width)
                return tensor, Tensor(rewriter.builder.arrange(dy, order), order)
    return None


def _is_kept(
    factors: Monomial,
    forward: Forward,
    labels: tuple[Axis, ...],
    extra: Mapping[Tensor, int],
    inverse: int,
) -> bool:
    """Whether the factors are e · M / z**inverse · extra, whatever the coefficient."""
    expected: dict[Node, int] = {
        forward.exponential.node: 1,
        forward.total.node: -inverse,
        **forward.keep,
    }
    for tensor, power in extra.items():
        expected[tensor.node] = power
    if {t.node: p for t, p in factors.powers.items()} != expected:
        return False
    here = _relabelled(forward.total, forward, labels)
    return here in factors.powers and all(set(t.axes) <= set(labels) for t in factors.powers)


def _relabelled(tensor: Tensor, forward: Forward, labels: tuple[Axis, ...]) -> Tensor:
    names = dict(zip(forward.labels, labels, strict=True))
    return Tensor(tensor.node, tuple(names[a] for a in tensor.axes))


def _relabel(tensor: Tensor, forward: Forward, labels: tuple[Axis, ...], width: Axis) -> Tensor:
    """q, k or v with the labels that hold here."""
    names = dict(zip(forward.labels, labels, strict=True))
    return Tensor(tensor.node, tuple(names.get(a, width) for a in tensor.axes))

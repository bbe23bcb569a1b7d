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

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..domain import Range
from ..tensor.graph import Node, Op, Operand, scalar_value, topological
from ..tensor.labelled import Axis, Tensor, TensorBuilder
from .engine import Rewriter, View
from .monomials import Monomial, expanded, monomial
from .patterns import match, match_map, match_masked, match_sum


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """Attributes of an ATTENTION node: one result of a fused operation.

    Attributes:
        result: ``y`` or ``lse`` of the forward operation; ``dq``, ``dk`` or ``dv`` of the
            backward one. Operands: q, k, v (forward) or dy, y, lse, q, k, v (backward),
            each (batch, head, position, width), then with dropout p, seed, step, site.
        scale: factor of the scores.
        causal: a query sees the keys up to its own position.
        dropout: whether a mask is applied to the probabilities.
    """

    result: str
    scale: float
    causal: bool
    dropout: bool


@dataclass(frozen=True, slots=True)
class _Forward:
    """A recognized forward pass, over labels (batch, head, i, j) and the width d.

    Attributes:
        y: the contraction with V.
        exponential, total: e over (batch, head, i, j) and z, as nodes.
        order: e's axes in the order (batch, head, i, j) as positions.
        keep: dropout factors by node with their powers (empty without dropout).
        kept_scale: the number among them: 1 / (1 - p) where p is a literal, else 1.
        kept: the DROPOUT node, None without.
    """

    y: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    exponential: Tensor
    total: Tensor
    labels: tuple[Axis, Axis, Axis, Axis]
    width: Axis
    scale: float
    causal: bool
    keep: dict[Node, int]
    kept_scale: float
    kept: Node | None


Replacement = Callable[[Mapping[int, Node]], Node]


def fuse_attention(rewriter: Rewriter, outputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs with every recognized attention and its backward fused."""
    nodes = topological(t.node for t in outputs)
    forwards = [f for f in (_forward(rewriter, n) for n in nodes) if f is not None]
    if not forwards:
        return list(outputs)
    replacements: dict[int, Replacement] = {}
    for forward in forwards:
        replacements[forward.y.node.index] = _replace_forward(rewriter, forward)
    by_exponential = {f.exponential.node.index: f for f in forwards}
    for node in nodes:
        found = _backward(rewriter, node, by_exponential)
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


# --- recognizing the forward pass -------------------------------------------------------


def _forward(rewriter: Rewriter, node: Node) -> _Forward | None:
    """Attention, if the node is the weighted sum of the values."""
    if node.op is not Op.CONTRACT or len(node.operands) != 2:
        return None
    y = Tensor(node, tuple(_axis(size) for size in node.shape))
    view = rewriter.expose(y)
    if len(view.reduced) != 1:
        return None
    for weights, v in (view.operands, view.operands[::-1]):
        found = _weighted(rewriter, y, weights, v, view.reduced[0])
        if found is not None:
            return found
    return None


def _weighted(
    rewriter: Rewriter, y: Tensor, weights: Tensor, v: Tensor, j: Axis
) -> _Forward | None:
    mask, product = _unmask(rewriter, weights)
    factors = monomial(rewriter, product)
    quotient = _softmax(rewriter, factors, j)
    if quotient is None:
        return None
    exponential, total, scores, scale = quotient
    rest = {t: p for t, p in factors.powers.items() if t not in (exponential, total)}
    i = _single([a for a in y.axes if a not in v.axes and a in exponential.axes])
    width = _single([a for a in v.axes if a not in exponential.axes])
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
    causal = _causality(rewriter, mask, i, j)
    if len(batch) != 2 or causal is None or set(v.axes) != {*batch, j, width}:
        return None
    q, k = _query_and_key(rewriter, scores, i, j, batch)
    if q is None or k is None or not _same_mask(rewriter, exponential, total, mask, j):
        return None
    return _Forward(
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
        scores = _single([t for t, p in scaled.powers.items() if p == 1])
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


def _unmask(rewriter: Rewriter, tensor: Tensor) -> tuple[Tensor | None, Tensor]:
    masked = match_masked(rewriter, tensor)
    if masked is None:
        return None, tensor
    inner = match_masked(rewriter, masked[1])
    if inner is not None and inner[0] == masked[0]:
        return inner
    return masked


def _causality(rewriter: Rewriter, mask: Tensor | None, i: Axis, j: Axis) -> bool | None:
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
        known = len(factors) == 1 and _close(coefficient, 1.0 / (1.0 - literal))
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
    query = _single([t for t in view.operands if set(t.axes) == {*batch, i, view.reduced[0]}])
    key = _single([t for t in view.operands if set(t.axes) == {*batch, j, view.reduced[0]}])
    return query, key


def _single(values: Sequence) -> object | None:
    return values[0] if len(values) == 1 else None


def _axis(size: int) -> Axis:
    return Axis("axis", Range(size))


# --- recognizing the backward pass ------------------------------------------------------


def _backward(
    rewriter: Rewriter, node: Node, forwards: Mapping[int, _Forward]
) -> Replacement | None:
    """The replacement of a node that is dQ, dK or dV of a recognized forward pass."""
    if node.op is not Op.CONTRACT or len(node.operands) != 2:
        return None
    out = Tensor(node, tuple(_axis(size) for size in node.shape))
    view = rewriter.expose(out)
    if len(view.reduced) != 1:
        return None
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
    forwards: Mapping[int, _Forward],
) -> Replacement | None:
    """dQ = dS K or dK = dSᵀ Q."""
    cotangent = _score_cotangent(rewriter, large, forwards)
    if cotangent is None:
        return None
    forward, labels, dy = cotangent
    b, h, i, j = labels
    width = _single([a for a in other.axes if a not in labels])
    if width is None:
        return None
    if reduced is j and other == _relabel(forward.k, forward, labels, width):
        return _replace_backward(rewriter, forward, "dq", dy, labels, out, (b, h, i, width))
    if reduced is i and other == _relabel(forward.q, forward, labels, width):
        return _replace_backward(rewriter, forward, "dk", dy, labels, out, (b, h, j, width))
    return None


def _of_values(
    rewriter: Rewriter,
    out: Tensor,
    large: Tensor,
    dy: Tensor,
    reduced: Axis,
    forwards: Mapping[int, _Forward],
) -> Replacement | None:
    """dV = (P · M)ᵀ dY."""
    mask, product = _unmask(rewriter, large)
    factors = monomial(rewriter, product)
    located = _located(factors, forwards)
    if located is None:
        return None
    forward, labels = located
    b, h, i, j = labels
    if reduced is not i or not _is_kept(factors, forward, labels, {}, inverse=1):
        return None
    if not _close(factors.coefficient, forward.kept_scale):
        return None
    if _causality(rewriter, mask, i, j) is not forward.causal:
        return None
    width = _single([a for a in dy.axes if a not in labels])
    if width is None:
        return None
    target = (b, h, j, width)
    ordered = rewriter.builder.arrange(dy, (b, h, i, width))
    return _replace_backward(
        rewriter, forward, "dv", Tensor(ordered, (b, h, i, width)), labels, out, target
    )


def _score_cotangent(
    rewriter: Rewriter, tensor: Tensor, forwards: Mapping[int, _Forward]
) -> tuple[_Forward, tuple[Axis, ...], Tensor] | None:
    """The forward pass, its labels here, and dY, if the tensor is dS."""
    mask, value = _unmask(rewriter, tensor)
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
    forwards: Mapping[int, _Forward],
) -> tuple[_Forward, tuple[Axis, ...], Tensor] | None:
    located = _located(direct, forwards)
    if located is None:
        return None
    forward, labels = located
    _, _, i, j = labels
    if _causality(rewriter, mask, i, j) is not forward.causal:
        return None
    product = _cotangent_product(rewriter, direct, forward, labels)
    if product is None or not _is_kept(direct, forward, labels, {product[0]: 1}, inverse=1):
        return None
    e = _relabelled(forward.exponential, forward, labels)
    correction = _single([t for t in indirect.powers if t != e])
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
    own, value = _unmask(rewriter, value)
    weighted = monomial(rewriter, value)
    if _causality(rewriter, own, i, j) is not forward.causal:
        return None
    if not _is_kept(weighted, forward, labels, {product[0]: 1}, inverse=2):
        return None
    expected = forward.scale * forward.kept_scale
    if not _close(direct.coefficient, expected):
        return None
    if not _close(coefficient * weighted.coefficient, -expected):
        return None
    return forward, labels, product[1]


def _located(
    factors: Monomial, forwards: Mapping[int, _Forward]
) -> tuple[_Forward, tuple[Axis, ...]] | None:
    """The forward pass whose e is a factor, and the labels that its axes have here."""
    for tensor, power in factors.powers.items():
        forward = forwards.get(tensor.node.index)
        if forward is not None and power == 1:
            here = dict(zip(forward.exponential.axes, tensor.axes, strict=True))
            return forward, tuple(here[a] for a in forward.labels)
    return None


def _cotangent_product(
    rewriter: Rewriter, factors: Monomial, forward: _Forward, labels: tuple[Axis, ...]
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
    forward: _Forward,
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


def _relabelled(tensor: Tensor, forward: _Forward, labels: tuple[Axis, ...]) -> Tensor:
    names = dict(zip(forward.labels, labels, strict=True))
    return Tensor(tensor.node, tuple(names[a] for a in tensor.axes))


def _relabel(tensor: Tensor, forward: _Forward, labels: tuple[Axis, ...], width: Axis) -> Tensor:
    """q, k or v with the labels that hold here."""
    names = dict(zip(forward.labels, labels, strict=True))
    return Tensor(tensor.node, tuple(names.get(a, width) for a in tensor.axes))


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-12 * abs(b)


# --- replacing --------------------------------------------------------------------------


def _replace_forward(rewriter: Rewriter, forward: _Forward) -> Replacement:
    b, h, i, _ = forward.labels

    def replacement(new: Mapping[int, Node]) -> Node:
        y = _call(rewriter, forward, new, "y", ())
        return _arranged(rewriter, y, (b, h, i, forward.width), forward.y.axes)

    return replacement


def _replace_backward(
    rewriter: Rewriter,
    forward: _Forward,
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
    forward: _Forward,
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


__all__ = ["AttentionCall", "fuse_attention"]

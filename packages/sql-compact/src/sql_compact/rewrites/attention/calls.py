"""What is recognized as attention, and what replaces it."""

from __future__ import annotations

from dataclasses import dataclass

from ...tensor.graph import Node
from ...tensor.labelled import Axis, Tensor


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
class Forward:
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

"""Lowering of fused attention: one call for all results, one buffer for a fused projection."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import fx

from ..rewrites.attention import AttentionCall
from ..tensor.graph import Node, Op, Operand
from . import operations
from .emitter import Emitter, Value

_FORWARD = ("y", "lse")
_BACKWARD = ("dq", "dk", "dv")
#: Positions of (batch, head, position, width) in the order (batch, position, head, width).
_HEADS_INSIDE = (0, 2, 1, 3)


@dataclass(frozen=True, slots=True)
class _FusedProjection:
    """Queries, keys and values that are parts of one array.

    Attributes:
        source: the array.
        order: its axes in the order (batch, position, part, head, width).
    """

    source: Node
    order: tuple[int, ...]


class AttentionLowering:
    """Lowers ATTENTION nodes, and stacks of their cotangents."""

    def __init__(self, emitter: Emitter) -> None:
        self._e = emitter
        self._calls: dict[object, fx.Node] = {}

    def result(self, node: Node) -> fx.Node:
        """One result of a fused operation, which runs once for all its results."""
        call: AttentionCall = node.attributes
        names = _FORWARD if call.result in _FORWARD else _BACKWARD
        key = (names, tuple(o.node.index for o in node.operands), replace(call, result=""))
        if key not in self._calls:
            function = operations.attention if names is _FORWARD else operations.attention_backward
            self._calls[key] = self._e.call(function, *self._arguments(node))
        value = self._e.call(operator.getitem, self._calls[key], names.index(call.result))
        return value if call.result == "lse" else self._e.product(node, value)

    def _arguments(self, node: Node) -> tuple[Value | tuple, ...]:
        call, nodes = node.attributes, [o.node for o in node.operands]
        count = 3 if call.result in _FORWARD else 6
        tensors = [self._e.tensor(n) if n.rank == 3 else self._e.factor(n) for n in nodes[:count]]
        return (*tensors, *self._settings(node, count))

    def _settings(self, node: Node, count: int) -> tuple:
        """What a fused operation takes beside its first ``count`` operands."""
        call = node.attributes
        scalars = [o.node for o in node.operands[count:]]
        batch, heads, keys, _ = node.operands[count - 1].node.shape
        keep = self._keep(scalars, (batch, heads, keys), call.causal)
        return keep, call.scale, call.causal, self._e.precision.value

    def _keep(
        self, scalars: Sequence[Node], sizes: tuple[int, int, int], causal: bool
    ) -> fx.Node | None:
        """What dropout keeps, made once for the forward and the backward operation."""
        if not scalars:
            return None
        key = ("keep", tuple(n.index for n in scalars), sizes)
        if key not in self._calls:
            values = [self._e.values[n.index] for n in scalars]
            self._calls[key] = self._e.call(
                operations.attention_keep, *values, sizes, causal, self._e.device
            )
        return self._calls[key]

    # --- cotangents of a fused projection -------------------------------------------------

    def stacked(self, node: Node) -> fx.Node | None:
        """A STACK of dQ, dK, dV written by the operation into one buffer; None if it is none.

        The projection that made queries, keys and values in one product gets its cotangent in
        one array too, without copies.
        """
        if len(node.operands) != 3:
            return None
        parts = [_behind_views(o) for o in node.operands]
        first = parts[0]
        for part, name in zip(parts, _BACKWARD, strict=True):
            if part.node.op is not Op.ATTENTION or part.node.attributes.result != name:
                return None
            if part.axes != first.axes or part.node.operands != first.node.operands:
                return None
        projection = _fused_projection(first.node)
        if projection is None:
            return None
        value = self._e.call(
            operations.attention_projection_backward,
            *self._projection_arguments(first.node, projection),
            *self._settings(first.node, 6),
        )
        # (batch, position, part, head, width) to the places of the stack's axes.
        batch, heads, position, width = first.axes
        places = (batch, position, node.attributes, heads, width)
        order = tuple(places.index(i) for i in range(5))
        return self._e.product(node, self._e.permuted(value, order))

    def _projection_arguments(
        self, node: Node, projection: _FusedProjection
    ) -> tuple[fx.Node, ...]:
        dy, y, lse = (o.node for o in node.operands[:3])
        inside = [self._e.permuted(self._e.factor(n), _HEADS_INSIDE) for n in (dy, y)]
        qkv = self._e.permuted(self._e.factor(projection.source), projection.order)
        return (*inside, self._e.tensor(lse), qkv)


def _behind_views(operand: Operand) -> Operand:
    """The operand without permutations, its axes where they came from."""
    node, axes = operand.node, operand.axes
    while (
        node.op is Op.MAP
        and node.attributes == "broadcast"
        and node.operands[0].node.rank == node.rank
    ):
        inner = node.operands[0]
        axes = tuple(axes[a] for a in inner.axes)
        node = inner.node
    return Operand(node, axes)


def _fused_projection(node: Node) -> _FusedProjection | None:
    """The array that queries, keys and values of a backward operation are parts of."""
    parts = [_behind_views(Operand(o.node, (0, 1, 2, 3))) for o in node.operands[3:6]]
    first = parts[0]
    if first.node.op is not Op.SLICE:
        return None
    axis, _ = first.node.attributes
    source = first.node.operands[0].node
    if source.shape[axis] != 3:
        return None
    for position, part in enumerate(parts):
        if part.node.op is not Op.SLICE or part.node.attributes != (axis, position):
            return None
        if part.axes != first.axes or part.node.operands[0].node is not source:
            return None
    kept = [a for a in range(source.rank) if a != axis]
    batch, heads, length, width = (kept[first.axes.index(i)] for i in range(4))
    return _FusedProjection(source, (batch, length, axis, heads, width))

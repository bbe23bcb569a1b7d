"""Static evaluation: values of nodes that depend on no input.

Masks over coordinates (``k.t <= q.t``) are known when the program is built; evaluating
them there lets a full mask vanish and an empty one end the query.
"""

from __future__ import annotations

import torch

from .graph import Graph, Node, Op, topological
from .maps import TORCH_DTYPES, map_function

#: Larger intermediate arrays are not evaluated at plan time.
MAX_STATIC_SIZE = 1 << 24


class StaticEvaluator:
    """Evaluates input-free nodes of one graph on the CPU, each once."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._values: dict[int, torch.Tensor | None] = {}

    def value(self, node: Node) -> torch.Tensor | None:
        """The node's value, or None when it depends on inputs or is too large."""
        if node.index not in self._values:
            for needed in topological([node]):
                if needed.index not in self._values:
                    self._values[needed.index] = self._evaluate(needed)
        return self._values[node.index]

    def _evaluate(self, node: Node) -> torch.Tensor | None:
        if node.size > MAX_STATIC_SIZE:
            return None
        if node.op is Op.CONSTANT:
            return torch.tensor(node.attributes.value, dtype=TORCH_DTYPES[node.dtype])
        if node.op is Op.DATA:
            return torch.from_numpy(node.attributes.values.copy())
        if node.op is Op.IOTA:
            return torch.arange(node.shape[0])
        operands = [self._values[o.node.index] for o in node.operands]
        if not operands or any(v is None for v in operands):
            return None
        if node.op is Op.MAP:
            views = [
                broadcast(value, operand.axes, node.rank)
                for value, operand in zip(operands, node.operands, strict=True)
            ]
            return map_function(node.attributes).torch(*views).expand(node.shape)
        if node.op is Op.REDUCE:
            return reduce_torch(*node.attributes, operands[0])
        if node.op is Op.SLICE:
            axis, position = node.attributes
            return operands[0].select(axis, position)
        return None


def broadcast(value: torch.Tensor, axes: tuple[int, ...], rank: int) -> torch.Tensor:
    """``value`` with its axes moved to positions ``axes`` of ``rank``, size 1 elsewhere."""
    order = sorted(range(len(axes)), key=axes.__getitem__)
    if order != list(range(len(axes))):
        value = value.permute(order)
    if len(axes) in (0, rank):
        return value
    present = set(axes)
    return value[tuple(slice(None) if i in present else None for i in range(rank))]


def reduce_torch(function: str, axes: tuple[int, ...], value: torch.Tensor) -> torch.Tensor:
    """Sum, max, min, any or all of ``value`` over ``axes``."""
    if not axes:
        return value
    if function == "sum":
        return value.sum(dim=axes, dtype=value.dtype)
    if function in ("max", "min"):
        return getattr(value, f"a{function}")(dim=axes)
    for axis in sorted(axes, reverse=True):
        value = getattr(value, function)(dim=axis)
    return value

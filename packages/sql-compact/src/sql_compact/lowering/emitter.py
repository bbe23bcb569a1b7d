"""Emission of torch calls: the graph under construction and the values of lowered nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from typing import Any

import torch
from torch import fx

from ..dtypes import DType
from ..precision import Precision
from ..tensor.graph import Node, Op
from ..tensor.maps import TORCH_DTYPES
from . import operations

#: A lowered value: a tensor in the graph, or a number known already.
Value = fx.Node | bool | int | float


class Emitter:
    """Writes a torch.fx graph, remembering the value of each node of the program.

    Under bfloat16 a product's result exists twice: in bfloat16, where another product reads
    it (:meth:`factor`), and in float32 for everything else (:meth:`tensor`).
    """

    def __init__(self, device: torch.device, precision: Precision) -> None:
        self.device = device
        self.precision = precision
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self.values: dict[int, Value] = {}
        self._narrow: dict[int, fx.Node] = {}
        self._products: set[int] = set()
        self._realized: dict[int, fx.Node] = {}
        self._in_slices: set[int] = set()

    def note_slices(self, nodes: Sequence[Node]) -> None:
        """Learn which inputs are read slice by slice, all of them."""
        slices = Counter((n.operands[0].node, n.attributes[0]) for n in nodes if n.op is Op.SLICE)
        self._in_slices = {
            source.index
            for (source, axis), count in slices.items()
            if source.op is Op.INPUT and count == source.shape[axis]
        }

    def call(self, function: Callable[..., Any], *arguments: Any) -> fx.Node:
        """One call of a torch function."""
        return self.graph.call_function(function, arguments)

    def buffer(self, name: str, value: torch.Tensor) -> fx.Node:
        """A constant array kept on the device."""
        if not hasattr(self.root, name):
            self.root.register_buffer(name, value.to(self.device), persistent=False)
        return self.graph.get_attr(name)

    def tensor(self, node: Node, dtype: DType | None = None) -> fx.Node:
        """The node's value as a tensor (of ``dtype``), also where it is a constant."""
        if dtype is not None and dtype is not node.dtype:
            return self.call(operations.cast, self.tensor(node), TORCH_DTYPES[dtype])
        value = self.values[node.index]
        if isinstance(value, fx.Node):
            return value
        constant = torch.tensor(value, dtype=TORCH_DTYPES[node.dtype])
        return self.buffer(f"constant_{node.index}", constant)

    def permuted(self, value: fx.Node, order: tuple[int, ...]) -> fx.Node:
        """The value with its axes in another order."""
        if order == tuple(range(len(order))):
            return value
        return self.call(torch.permute, value, order)

    def view(self, value: fx.Node, axes: tuple[int, ...], rank: int) -> fx.Node:
        """The value with its axes at positions ``axes`` of ``rank``, size 1 elsewhere."""
        if not axes:
            return value
        value = self.permuted(value, tuple(sorted(range(len(axes)), key=axes.__getitem__)))
        for position in range(rank):
            if position not in axes:
                value = self.call(torch.unsqueeze, value, position)
        return value

    def number(self, node: Node) -> fx.Node:
        """A computed number that arrays are combined with.

        On CUDA it is computed once and stored: a compiler would otherwise put its whole
        computation, powers in float64 included, into every element of every kernel.
        """
        value = self.tensor(node)
        if self.device.type != "cuda" or node.op is not Op.MAP:
            return value
        if node.index not in self._realized:
            self._realized[node.index] = self.call(operations.realize, value)
        return self._realized[node.index]

    # --- products in bfloat16 -----------------------------------------------------------

    def product(self, node: Node, value: fx.Node) -> fx.Node:
        """The node's value, given the result of its product in the type products run in."""
        if not self._is_narrow(node):
            return value
        self._narrow[node.index] = value
        self._products.add(node.index)
        return self.call(operations.cast, value, torch.float32)

    def factor(self, node: Node) -> fx.Node:
        """The node's value in the type that products run in.

        Views of a bfloat16 product are taken of the product itself, not of its float32 form.
        """
        if not self._is_narrow(node):
            return self.tensor(node)
        if node.index not in self._narrow:
            self._narrow[node.index] = self._narrowed(node)
        return self._narrow[node.index]

    def products(self, node: Node) -> list[fx.Node]:
        """The node's operands in bfloat16 if all of them are products, else nothing."""
        parts = [o.node for o in node.operands]
        if not self._is_narrow(node) or not all(self._is_view_of(p, self._products) for p in parts):
            return []
        return [self.factor(part) for part in parts]

    def _is_narrow(self, node: Node) -> bool:
        return self.precision is Precision.BFLOAT16 and node.dtype is DType.FLOAT32

    def _narrowed(self, node: Node) -> fx.Node:
        source = node.operands[0].node if len(node.operands) == 1 else None
        whole = source is not None and source.index in self._in_slices
        if source is not None and (whole or self._is_view_of(source, self._narrow)):
            # An input of which all slices are factors changes its type in one piece.
            if node.op is Op.SLICE:
                return self.call(torch.select, self.factor(source), *node.attributes)
            if node.op is Op.MAP and node.attributes == "broadcast":
                view = self.view(self.factor(source), node.operands[0].axes, node.rank)
                return self.call(operations.expand, view, node.shape)
        return self.call(operations.cast, self.tensor(node), torch.bfloat16)

    def _is_view_of(self, node: Node, found: Container[int]) -> bool:
        """Whether the node is one of those found, or a view of one."""
        if node.index in found:
            return True
        is_view = node.op is Op.SLICE or (node.op is Op.MAP and node.attributes == "broadcast")
        return is_view and self._is_view_of(node.operands[0].node, found)

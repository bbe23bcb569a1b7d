"""Lowering of a tensor program to a torch.fx module, run as it is or compiled.

The module's parameters are the program's inputs by position; dead arrays are released
as soon as their last user has run (torch.fx's generated code does that).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from ..precision import Precision
from ..tensor.graph import Node, Op, scalar_value
from ..tensor.maps import TORCH_DTYPES, map_function
from ..tensor.static import reduce_torch
from . import operations
from .attention import AttentionLowering
from .contraction import Factor, matrix_product
from .emitter import Emitter, Value
from .in_place import reuse_memory
from .schedule import defer, schedule
from .totals import Total, Totals, find_totals, total

#: Functions that are Python operators, which take numbers beside tensors.
_OPERATORS = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "lt": operator.lt,
    "lte": operator.le,
    "gt": operator.gt,
    "gte": operator.ge,
}

_ARITHMETIC = ("add", "subtract", "multiply", "divide")


@dataclass(frozen=True, slots=True)
class LoweredProgram:
    """A runnable program.

    Attributes:
        module: called with one tensor for each name in ``inputs``, in order; returns the
            outputs as a tuple.
        inputs: names of the input nodes the program reads.
    """

    module: fx.GraphModule
    inputs: tuple[str, ...]


def lower(outputs: Sequence[Node], device: torch.device, precision: Precision) -> LoweredProgram:
    """Lower the program that computes ``outputs``."""
    return _Lowering(device, precision).run(outputs)


class _Lowering:
    """Lowers each operation by the method of its name."""

    def __init__(self, device: torch.device, precision: Precision) -> None:
        self._e = Emitter(device, precision)
        self._attentions = AttentionLowering(self._e)
        self._totals = Totals()

    def run(self, outputs: Sequence[Node]) -> LoweredProgram:
        order = schedule(outputs)
        if self._e.device.type == "cpu":
            order = defer(order, outputs)
        if self._e.device.type == "cuda":
            self._totals = find_totals(order, outputs)
        self._e.note_slices(order)
        inputs = sorted((n for n in order if n.op is Op.INPUT), key=lambda n: n.attributes)
        values = self._e.values
        for i, node in enumerate(inputs):
            values[node.index] = self._e.graph.placeholder(f"input_{i}")
        for node in order:
            if node.index not in values and node.index not in self._totals.absorbed:
                lowering: Callable[[Node], Value] = getattr(self, f"_{node.op.value}")
                values[node.index] = lowering(node)
        self._e.graph.output(tuple(self._e.tensor(node) for node in outputs))
        # What a stack of cotangents made superfluous; a compiler would drop it, nothing else would.
        self._e.graph.eliminate_dead_code()
        if self._e.device.type == "cpu":
            by_index = {node.index: node for node in order}
            reuse_memory(
                self._e.graph,
                {v: by_index[i] for i, v in values.items() if isinstance(v, fx.Node)},
            )
        module = fx.GraphModule(self._e.root, self._e.graph)
        return LoweredProgram(module, tuple(str(n.attributes) for n in inputs))

    def _constant(self, node: Node) -> Value:
        value = scalar_value(node)
        assert value is not None
        return value

    def _data(self, node: Node) -> fx.Node:
        values = torch.from_numpy(node.attributes.values.copy())
        return self._e.buffer(f"data_{node.index}", values)

    def _iota(self, node: Node) -> fx.Node:
        return self._e.buffer(f"iota_{node.index}", torch.arange(node.shape[0]))

    def _map(self, node: Node) -> fx.Node:
        name = str(node.attributes)
        if node.index in self._totals.found:
            return self._total(node, self._totals.found[node.index])
        if name == "broadcast":
            operand = node.operands[0]
            value = self._e.tensor(operand.node, node.dtype)
            view = self._e.view(value, operand.axes, node.rank)
            return self._e.call(operations.expand, view, node.shape)
        function = _OPERATORS.get(name)
        if name == "divide" and node.dtype.is_float:
            function = operator.truediv
        operands = [self._operand(node, i, function is not None) for i in range(len(node.operands))]
        if name.startswith("cast:"):
            return self._e.call(operations.cast, operands[0], TORCH_DTYPES[node.dtype])
        if function is operator.truediv and operands[0] == 1.0 and isinstance(operands[1], fx.Node):
            # What torch makes of the quotient, without its product by one.
            return self._e.call(torch.reciprocal, operands[1])
        return self._e.call(function or map_function(name).torch, *operands)

    def _total(self, node: Node, tree: Total) -> fx.Node:
        arrays = tuple(self._e.tensor(array) for array in tree.arrays)
        value = self._e.call(total, arrays, TORCH_DTYPES[node.dtype])
        for other in tree.others:
            value = self._e.call(operator.add, value, self._e.tensor(other, node.dtype))
        return value

    def _operand(self, node: Node, i: int, takes_numbers: bool) -> Value:
        """An operand of an elementwise function, as a view over the result's axes."""
        operand = node.operands[i]
        value = self._e.values[operand.node.index]
        mistyped = self._mistyped(node, operand.node)
        if isinstance(value, fx.Node):
            if mistyped:
                value = self._e.tensor(operand.node, node.dtype)
            elif node.rank and not operand.node.rank:
                value = self._e.number(operand.node)
            return self._e.view(value, operand.axes, node.rank)
        if takes_numbers or (node.attributes == "where" and i > 0 and self._where_takes(node, i)):
            return value
        return self._e.tensor(operand.node, node.dtype if mistyped else None)

    def _mistyped(self, node: Node, operand: Node) -> bool:
        """An operand whose type torch would not change to the result's by itself.

        Torch gives arithmetic on arrays and numbers the arrays' type; where there are no
        arrays of floats the numbers must have the result's type already, and integers beside
        a number would become floats of torch's default type.
        """
        if operand.dtype.is_integer and node.attributes in _ARITHMETIC:
            return node.dtype.is_float
        if not node.dtype.is_float or not operand.dtype.is_float or operand.rank:
            return False
        if operand.dtype is node.dtype or str(node.attributes).startswith("cast:"):
            return False
        return not any(o.node.rank and o.node.dtype.is_float for o in node.operands)

    def _where_takes(self, node: Node, i: int) -> bool:
        """A number beside a tensor branch of the result's own type."""
        other = node.operands[3 - i].node
        return other.rank > 0 and other.dtype is node.dtype

    def _reduce(self, node: Node) -> fx.Node:
        function, axes = node.attributes
        value = self._e.tensor(node.operands[0].node)
        return self._e.call(reduce_torch, function, axes, value)

    def _contract(self, node: Node) -> fx.Node:
        plan = matrix_product(node)
        nodes = [o.node for o in node.operands]
        if plan.swapped:
            nodes.reverse()
        left = self._matrix(nodes[0], plan.left)
        right = self._matrix(nodes[1], plan.right)
        value = self._e.call(torch.bmm if plan.batched else torch.mm, left, right)
        value = self._e.call(torch.reshape, value, plan.shape)
        return self._e.product(node, self._e.permuted(value, plan.order))

    def _matrix(self, node: Node, factor: Factor) -> fx.Node:
        value = self._e.factor(node)
        if factor.alone:
            value = self._e.call(torch.sum, value, factor.alone)
        return self._e.call(torch.reshape, self._e.permuted(value, factor.order), factor.shape)

    def _gather(self, node: Node) -> fx.Node:
        value, index = node.operands
        tensors = (self._e.tensor(value.node), self._e.tensor(index.node))
        return self._e.call(operations.gather, *tensors, value.axes, index.axes, node.rank)

    def _slice(self, node: Node) -> fx.Node:
        value = self._e.tensor(node.operands[0].node)
        return self._e.call(torch.select, value, *node.attributes)

    def _place(self, node: Node) -> fx.Node:
        axis, position = node.attributes
        value = self._e.tensor(node.operands[0].node, node.dtype)
        return self._e.call(operations.place, value, axis, position, node.shape[axis])

    def _stack(self, node: Node) -> fx.Node:
        projection = self._attentions.stacked(node)
        if projection is not None:
            return projection
        products = self._e.products(node)
        values = products or [self._e.values[o.node.index] for o in node.operands]
        axes = [o.axes for o in node.operands]
        dtype = torch.bfloat16 if products else TORCH_DTYPES[node.dtype]
        like = (node.shape, dtype, self._e.device)
        stacked = self._e.call(operations.stack, values, axes, node.attributes, like)
        return self._e.product(node, stacked) if products else stacked

    def _diagonal(self, node: Node) -> fx.Node:
        value = self._e.tensor(node.operands[0].node)
        return self._e.call(operations.diagonal, value, *node.attributes)

    def _attention(self, node: Node) -> fx.Node:
        return self._attentions.result(node)

    def _dropout(self, node: Node) -> fx.Node:
        scalars = [self._e.values[o.node.index] for o in node.operands]
        return self._e.call(operations.dropout, *scalars, node.shape, self._e.device)

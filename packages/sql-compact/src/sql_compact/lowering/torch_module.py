"""Lowering of a tensor program to a torch.fx module, run as it is or compiled.

The module's parameters are the program's inputs by position; dead arrays are released
as soon as their last user has run (torch.fx's generated code does that).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from ..dtypes import DType
from ..precision import Precision
from ..tensor.graph import Node, Op, scalar_value
from ..tensor.maps import TORCH_DTYPES, map_function
from ..tensor.static import reduce_torch
from . import operations
from .contraction import Factor, matrix_product
from .schedule import schedule

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
    def __init__(self, device: torch.device, precision: Precision) -> None:
        self._device = device
        self._precision = precision
        self._graph = fx.Graph()
        self._root = torch.nn.Module()
        self._values: dict[int, fx.Node | bool | int | float] = {}
        self._fused: dict[object, fx.Node] = {}
        #: Results of products in bfloat16, before they are widened.
        self._narrow: dict[int, fx.Node] = {}

    def run(self, outputs: Sequence[Node]) -> LoweredProgram:
        order = schedule(outputs)
        inputs = sorted((n for n in order if n.op is Op.INPUT), key=lambda n: n.attributes)
        for i, node in enumerate(inputs):
            self._values[node.index] = self._graph.placeholder(f"input_{i}")
        for node in order:
            if node.index not in self._values:
                self._values[node.index] = self._lower(node)
        self._graph.output(tuple(self._tensor(node) for node in outputs))
        module = fx.GraphModule(self._root, self._graph)
        return LoweredProgram(module, tuple(str(n.attributes) for n in inputs))

    def _lower(self, node: Node):
        return getattr(self, f"_{node.op.value}")(node)

    def _call(self, function, *arguments):
        return self._graph.call_function(function, arguments)

    def _buffer(self, name: str, value: torch.Tensor) -> fx.Node:
        self._root.register_buffer(name, value.to(self._device), persistent=False)
        return self._graph.get_attr(name)

    def _tensor(self, node: Node, dtype: DType | None = None) -> fx.Node:
        """The node's value as a tensor (of ``dtype``), also where it is a constant."""
        value = self._values[node.index]
        if dtype is not None and dtype is not node.dtype:
            return self._call(operations.cast, self._tensor(node), TORCH_DTYPES[dtype])
        if isinstance(value, fx.Node):
            return value
        name = f"constant_{node.index}"
        if not hasattr(self._root, name):
            return self._buffer(name, torch.tensor(value, dtype=TORCH_DTYPES[node.dtype]))
        return self._graph.get_attr(name)

    # --- operations -------------------------------------------------------------------

    def _constant(self, node: Node):
        return scalar_value(node)

    def _data(self, node: Node):
        return self._buffer(f"data_{node.index}", torch.from_numpy(node.attributes.values.copy()))

    def _iota(self, node: Node):
        return self._buffer(f"iota_{node.index}", torch.arange(node.shape[0]))

    def _map(self, node: Node):
        name = str(node.attributes)
        operands = []
        function = _OPERATORS.get(name)
        if name == "divide" and node.dtype.is_float:
            function = operator.truediv
        for i, operand in enumerate(node.operands):
            value = self._values[operand.node.index]
            if isinstance(value, fx.Node):
                if self._mistyped(node, operand.node):
                    value = self._tensor(operand.node, node.dtype)
                operands.append(self._view(value, operand.axes, node.rank))
            elif function or (name == "where" and i > 0 and self._where_takes(node, i)):
                operands.append(value)
            else:
                wanted = node.dtype if self._mistyped(node, operand.node) else None
                operands.append(self._tensor(operand.node, wanted))
        if name == "broadcast":
            value = self._tensor(node.operands[0].node, node.dtype)
            view = self._view(value, node.operands[0].axes, node.rank)
            return self._call(operations.expand, view, node.shape)
        if name.startswith("cast:"):
            return self._call(operations.cast, operands[0], TORCH_DTYPES[node.dtype])
        return self._call(function or map_function(name).torch, *operands)

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

    def _view(self, value: fx.Node, axes: tuple[int, ...], rank: int) -> fx.Node:
        """The value with its axes at positions ``axes`` of ``rank``, size 1 elsewhere."""
        if not axes:
            return value
        order = tuple(sorted(range(len(axes)), key=axes.__getitem__))
        value = self._permuted(value, order)
        for position in range(rank):
            if position not in axes:
                value = self._call(torch.unsqueeze, value, position)
        return value

    def _reduce(self, node: Node):
        function, axes = node.attributes
        return self._call(reduce_torch, function, axes, self._tensor(node.operands[0].node))

    def _contract(self, node: Node):
        plan = matrix_product(node)
        nodes = [o.node for o in node.operands]
        if plan.swapped:
            nodes.reverse()
        left, right = (
            self._matrix(self._factor(n), factor)
            for n, factor in zip(nodes, (plan.left, plan.right), strict=True)
        )
        value = self._call(torch.bmm if plan.batched else torch.mm, left, right)
        value = self._call(torch.reshape, value, plan.shape)
        return self._product(node, self._permuted(value, plan.order))

    def _matrix(self, value: fx.Node, factor: Factor) -> fx.Node:
        if factor.alone:
            value = self._call(torch.sum, value, factor.alone)
        return self._call(torch.reshape, self._permuted(value, factor.order), factor.shape)

    def _permuted(self, value: fx.Node, order: tuple[int, ...]) -> fx.Node:
        if order == tuple(range(len(order))):
            return value
        return self._call(torch.permute, value, order)

    def _product(self, node: Node, value: fx.Node) -> fx.Node:
        """The result of a product in the policy's type, and the node's value made of it."""
        if not self._is_narrow(node):
            return value
        self._narrow[node.index] = value
        return self._call(operations.cast, value, torch.float32)

    def _is_narrow(self, node: Node) -> bool:
        return self._precision is Precision.BFLOAT16 and node.dtype is DType.FLOAT32

    def _factor(self, node: Node) -> fx.Node:
        """The node's value in the type that products run in.

        Views of a bfloat16 product are taken of the product itself, not of its float32 form.
        """
        if not self._is_narrow(node):
            return self._tensor(node)
        if node.index not in self._narrow:
            self._narrow[node.index] = self._narrowed(node)
        return self._narrow[node.index]

    def _narrowed(self, node: Node) -> fx.Node:
        source = node.operands[0].node if len(node.operands) == 1 else None
        if source is not None and self._has_narrow(source):
            if node.op is Op.SLICE:
                return self._call(torch.select, self._factor(source), *node.attributes)
            if node.op is Op.MAP and node.attributes == "broadcast":
                view = self._view(self._factor(source), node.operands[0].axes, node.rank)
                return self._call(operations.expand, view, node.shape)
        return self._call(operations.cast, self._tensor(node), torch.bfloat16)

    def _has_narrow(self, node: Node) -> bool:
        """Whether the node is a product in bfloat16, or a view of one."""
        if node.index in self._narrow:
            return True
        is_view = node.op is Op.SLICE or (node.op is Op.MAP and node.attributes == "broadcast")
        return is_view and self._has_narrow(node.operands[0].node)

    def _gather(self, node: Node):
        value, index = node.operands
        return self._call(
            operations.gather,
            self._tensor(value.node),
            self._tensor(index.node),
            value.axes,
            index.axes,
            node.rank,
        )

    def _slice(self, node: Node):
        return self._call(torch.select, self._tensor(node.operands[0].node), *node.attributes)

    def _place(self, node: Node):
        axis, position = node.attributes
        value = self._tensor(node.operands[0].node, node.dtype)
        return self._call(operations.place, value, axis, position, node.shape[axis])

    def _stack(self, node: Node):
        values = [self._values[o.node.index] for o in node.operands]
        axes = [o.axes for o in node.operands]
        like = (node.shape, TORCH_DTYPES[node.dtype], self._device)
        return self._call(operations.stack, values, axes, node.attributes, like)

    def _diagonal(self, node: Node):
        return self._call(
            operations.diagonal, self._tensor(node.operands[0].node), *node.attributes
        )

    def _attention(self, node: Node):
        """One result of a fused operation, which runs once for all its results."""
        call = node.attributes
        forward = call.result in ("y", "lse")
        fused = self._fused_call(node, forward)
        results = ("y", "lse") if forward else ("dq", "dk", "dv")
        value = self._call(operator.getitem, fused, results.index(call.result))
        return value if call.result == "lse" else self._product(node, value)

    def _fused_call(self, node: Node, forward: bool) -> fx.Node:
        operands = tuple(o.node.index for o in node.operands)
        key = (forward, operands, replace(node.attributes, result=""))
        if key not in self._fused:
            function = operations.attention if forward else operations.attention_backward
            tensors, settings = self._attention_arguments(node, 3 if forward else 6)
            self._fused[key] = self._call(function, *tensors, *settings)
        return self._fused[key]

    def _attention_arguments(self, node: Node, count: int) -> tuple[list[fx.Node], tuple]:
        """The first ``count`` operands, and what else a fused attention takes."""
        call, nodes = node.attributes, [o.node for o in node.operands]
        tensors = [self._tensor(n) if n.rank == 3 else self._factor(n) for n in nodes[:count]]
        batch, heads, keys, _ = nodes[count - 1].shape
        keep = self._keep(nodes[count:], (batch, heads, keys), call.causal)
        return tensors, (keep, call.scale, call.causal, self._precision.value)

    def _keep(self, scalars: Sequence[Node], sizes: tuple[int, int, int], causal: bool):
        """What dropout keeps, made once for the forward and the backward operation."""
        if not scalars:
            return None
        key = (tuple(n.index for n in scalars), sizes)
        if key not in self._fused:
            values = [self._values[n.index] for n in scalars]
            self._fused[key] = self._call(
                operations.attention_keep, *values, sizes, causal, self._device
            )
        return self._fused[key]

    def _dropout(self, node: Node):
        scalars = [self._values[o.node.index] for o in node.operands]
        return self._call(operations.dropout, *scalars, node.shape, self._device)

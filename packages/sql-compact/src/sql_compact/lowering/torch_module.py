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
from ..tensor.static import broadcast, reduce_torch
from . import operations
from .contraction import contract
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
        if axes == tuple(range(rank)) or not axes:
            return value
        return self._call(broadcast, value, axes, rank)

    def _reduce(self, node: Node):
        function, axes = node.attributes
        return self._call(reduce_torch, function, axes, self._tensor(node.operands[0].node))

    def _contract(self, node: Node):
        left, right = node.operands
        return self._call(
            contract,
            self._tensor(left.node),
            self._tensor(right.node),
            left.axes,
            right.axes,
            node.rank,
            self._precision is Precision.BFLOAT16,
        )

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
        key = (
            call.result in ("y", "lse"),
            tuple((o.node.index, o.axes) for o in node.operands),
            replace(call, result=""),
        )
        if key not in self._fused:
            operands = [self._values[o.node.index] for o in node.operands]
            self._fused[key] = self._call(
                operations.attention if key[0] else operations.attention_backward,
                *operands,
                call.scale,
                call.causal,
                self._precision.value,
            )
        results = ("y", "lse") if key[0] else ("dq", "dk", "dv")
        return self._call(operator.getitem, self._fused[key], results.index(call.result))

    def _dropout(self, node: Node):
        scalars = [self._values[o.node.index] for o in node.operands]
        return self._call(operations.dropout, *scalars, node.shape, self._device)

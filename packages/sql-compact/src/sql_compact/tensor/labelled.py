"""Tensors with named axes: the layer the relation algebra speaks.

An :class:`Axis` is a row axis of a relation with its domain; a :class:`Tensor` is a
graph node whose axes carry such labels. The functions here broadcast by label, simplify
what is plainly equal, and keep axes distinct (equating two axes of a computed tensor
takes its diagonal at the leaves, see :mod:`sql_compact.tensor.diagonal`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..domain import Domain
from ..dtypes import DType
from .diagonal import diagonal
from .graph import Graph, Node, Op, Operand, is_tangent_zero, scalar_value
from .maps import cast_name, map_function
from .static import StaticEvaluator


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """A row axis; two axes are the same only if they are the same object.

    Attributes:
        name: for messages and results; not an identity.
    """

    name: str
    domain: Domain

    @property
    def size(self) -> int:
        return self.domain.size


@dataclass(frozen=True, slots=True)
class Tensor:
    """A node and the label of each of its axes."""

    node: Node
    axes: tuple[Axis, ...]

    @property
    def dtype(self) -> DType:
        return self.node.dtype


class TensorBuilder:
    """Builds labelled tensors in one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.static = StaticEvaluator(graph)

    # --- leaves -----------------------------------------------------------------------

    def constant(self, value: bool | int | float, dtype: DType) -> Tensor:
        return Tensor(self.graph.constant(value, dtype), ())

    def tangent_zero(self, dtype: DType) -> Tensor:
        return Tensor(self.graph.constant(0.0, dtype, tangent=True), ())

    def iota(self, axis: Axis) -> Tensor:
        """Positions along ``axis``."""
        return Tensor(self.graph.iota(axis.size), (axis,))

    # --- elementwise ------------------------------------------------------------------

    def map(self, function: str, *tensors: Tensor) -> Tensor:
        """Apply an elementwise function, broadcasting by label."""
        simpler = self._simplify(function, tensors)
        if simpler is not None:
            return simpler
        entry = map_function(function)
        if entry.commutative:
            # The larger operand first: contractions keep this order for their output axes.
            tensors = tuple(sorted(tensors, key=lambda t: (-t.node.size, t.node.index)))
        axes: list[Axis] = []
        for tensor in sorted(tensors, key=lambda t: -len(t.axes)):
            axes += [a for a in tensor.axes if a not in axes]
        place = {axis: i for i, axis in enumerate(axes)}
        operands = [Operand(t.node, tuple(place[a] for a in t.axes)) for t in tensors]
        dtype = entry.result([t.dtype for t in tensors])
        shape = tuple(a.size for a in axes)
        return Tensor(self.graph.intern(Op.MAP, operands, shape, dtype, function), tuple(axes))

    def cast(self, tensor: Tensor, dtype: DType) -> Tensor:
        dtype = self.graph.precision.element(dtype, len(tensor.axes))
        return tensor if tensor.dtype is dtype else self.map(cast_name(dtype), tensor)

    def conjunction(self, masks: Iterable[Tensor | None]) -> Tensor | None:
        """AND of masks, where None is always true."""
        result: Tensor | None = None
        for mask in masks:
            if mask is not None:
                result = mask if result is None else self.map("and", result, mask)
        return result

    def known_mask(self, mask: Tensor | None) -> Tensor | None:
        """None when the mask is true everywhere by coordinates alone."""
        if mask is None:
            return None
        value = self.static.value(mask.node)
        return None if value is not None and bool(value.all()) else mask

    def is_never(self, mask: Tensor | None) -> bool:
        """Whether the mask is false everywhere by coordinates alone."""
        if mask is None:
            return False
        value = self.static.value(mask.node)
        return value is not None and not bool(value.any())

    def where(self, mask: Tensor | None, value: Tensor, otherwise: Tensor) -> Tensor:
        """``value`` where the mask holds (None: everywhere), else ``otherwise``."""
        return value if mask is None else self.map("where", mask, value, otherwise)

    # --- axes -------------------------------------------------------------------------

    def reduce(self, function: str, tensor: Tensor, over: Iterable[Axis]) -> Tensor:
        """Reduce over those of the axes that the tensor has."""
        dropped = set(over)
        axes = tuple(i for i, a in enumerate(tensor.axes) if a in dropped)
        if not axes:
            return tensor
        kept = tuple(a for a in tensor.axes if a not in dropped)
        operand = Operand(tensor.node, tuple(range(len(tensor.axes))))
        shape = tuple(a.size for a in kept)
        node = self.graph.intern(Op.REDUCE, [operand], shape, tensor.dtype, (function, axes))
        return Tensor(node, kept)

    def reduce_all(self, function: str, tensor: Tensor, over: Sequence[Axis]) -> Tensor:
        """Reduce over all the axes; a sum counts the value once for each missing one."""
        result = self.reduce(function, tensor, over)
        times = math.prod(a.size for a in over if a not in tensor.axes)
        if function == "sum" and times != 1:
            return self.map("multiply", result, self.constant(times, result.dtype))
        return result

    def contract(self, factors: Sequence[Tensor], over: Sequence[Axis]) -> Tensor:
        """Sum of the product of the factors over the axes; others are output axes.

        Axes that no factor has count the product once for each of their positions.
        """
        present = {a for f in factors for a in f.axes}
        times = math.prod(a.size for a in over if a not in present)
        summed = [a for a in over if a in present]
        axes = list(dict.fromkeys(a for f in factors for a in f.axes if a not in summed))
        place = {a: i for i, a in enumerate(axes + summed)}
        operands = [Operand(f.node, tuple(place[a] for a in f.axes)) for f in factors]
        dtype = map_function("multiply").result([f.dtype for f in factors])
        shape = tuple(a.size for a in axes)
        result = Tensor(self.graph.intern(Op.CONTRACT, operands, shape, dtype), tuple(axes))
        if times != 1:
            return self.map("multiply", result, self.constant(times, dtype))
        return result

    def arrange(self, tensor: Tensor, axes: Sequence[Axis]) -> Node:
        """A node with exactly these axes in this order (broadcast over missing ones)."""
        if tuple(axes) == tensor.axes:
            return tensor.node
        place = {a: i for i, a in enumerate(axes)}
        operand = Operand(tensor.node, tuple(place[a] for a in tensor.axes))
        shape = tuple(a.size for a in axes)
        return self.graph.intern(Op.MAP, [operand], shape, tensor.dtype, "broadcast")

    def slice(self, tensor: Tensor, axis: Axis, position: int) -> Tensor:
        """The tensor at one position of ``axis``."""
        if axis not in tensor.axes:
            return tensor
        at = tensor.axes.index(axis)
        kept = tensor.axes[:at] + tensor.axes[at + 1 :]
        return Tensor(slice_node(self.graph, tensor.node, at, position), kept)

    def gather(self, tensor: Tensor, axis: Axis, index: Tensor) -> Tensor:
        """The tensor with ``axis`` read at the positions in ``index`` (in range)."""
        if axis not in tensor.axes:
            return tensor
        if tensor.node.op is Op.IOTA:
            return index
        position = scalar_value(index.node)
        if position is not None:
            return self.slice(tensor, axis, int(position))
        rest = [a for a in tensor.axes if a is not axis]
        axes = list(index.axes) + [a for a in rest if a not in index.axes]
        place = {a: i for i, a in enumerate(axes)} | {axis: -1}
        operands = [
            Operand(tensor.node, tuple(place[a] for a in tensor.axes)),
            Operand(index.node, tuple(place[a] for a in index.axes)),
        ]
        shape = tuple(a.size for a in axes)
        node = self.graph.intern(Op.GATHER, operands, shape, tensor.dtype)
        return Tensor(node, tuple(axes))

    def lookup(self, table: Node, code: Tensor) -> Tensor:
        """Elements of a one-dimensional ``table`` at the positions in ``code``."""
        operands = [
            Operand(table, (-1,)),
            Operand(code.node, tuple(range(len(code.axes)))),
        ]
        node = self.graph.intern(Op.GATHER, operands, code.node.shape, table.dtype)
        return Tensor(node, code.axes)

    def rename(self, tensor: Tensor, names: Mapping[Axis, Axis]) -> Tensor:
        """The tensor with axes relabelled; axes that become equal are equated."""
        axes = [names.get(a, a) for a in tensor.axes]
        node = tensor.node
        q = 0
        while q < len(axes):
            p = axes.index(axes[q])
            if p < q:
                node = diagonal(self.graph, node, p, q)
                del axes[q]
            else:
                q += 1
        return Tensor(node, tuple(axes))

    # --- simplification ---------------------------------------------------------------

    def _simplify(self, function: str, tensors: tuple[Tensor, ...]) -> Tensor | None:
        """Equalities that hold for every value, NaN and infinity included."""
        if function == "broadcast":
            return tensors[0]
        values = [scalar_value(t.node) for t in tensors]
        zeros = [is_tangent_zero(t.node) for t in tensors]
        if any(zeros):
            return self._simplify_tangent(function, tensors, zeros)
        if tensors and all(v is not None for v in values):
            return self._fold_constants(function, tensors)
        if function == "add" and tensors[0] == tensors[1] and tensors[0].dtype.is_float:
            return self.map("multiply", tensors[0], self.constant(2.0, tensors[0].dtype))
        if function == "multiply":
            for i in (0, 1):
                if values[i] == 1 and tensors[1 - i].dtype.is_float:
                    return tensors[1 - i]
        elif function == "divide" and values[1] == 1 and tensors[0].dtype.is_float:
            return tensors[0]
        elif function in ("and", "or"):
            return self._simplify_logic(function == "and", tensors, values)
        elif function == "not" and _is_map(tensors[0], "not"):
            return _negated(tensors[0])
        elif function == "where":
            mask, then, otherwise = tensors
            if values[0] is not None:
                return then if values[0] else otherwise
            if then == otherwise:
                return then
            if _is_map(mask, "not"):
                return self.map("where", _negated(mask), otherwise, then)
            if then.dtype is DType.BOOL:
                return self._choice_of_truth(mask, then, otherwise, values)
        elif function == "equal" and tensors[0] == tensors[1] and tensors[0].dtype.is_integer:
            return self.constant(True, DType.BOOL)
        return None

    def _simplify_tangent(
        self, function: str, tensors: tuple[Tensor, ...], zeros: list[bool]
    ) -> Tensor | None:
        if function == "multiply" or (function == "divide" and zeros[0]):
            return tensors[zeros.index(True)]
        if function == "add":
            return tensors[1 - zeros.index(True)]
        if function == "subtract" and zeros[1]:
            return tensors[0]
        if function.startswith("cast:"):
            return self.tangent_zero(DType(function.removeprefix("cast:")))
        return None

    def _simplify_logic(
        self, conjunction: bool, tensors: tuple[Tensor, ...], values: list
    ) -> Tensor | None:
        for i in (0, 1):
            if values[i] is not None:
                neutral = bool(values[i]) is conjunction
                return tensors[1 - i] if neutral else tensors[i]
            if _is_map(tensors[i], "not") and _negated(tensors[i]) == tensors[1 - i]:
                return self.constant(not conjunction, DType.BOOL)
        return tensors[0] if tensors[0] == tensors[1] else None

    def _choice_of_truth(
        self, mask: Tensor, then: Tensor, otherwise: Tensor, values: list
    ) -> Tensor | None:
        """A choice one side of which is known, as AND or OR: ``where(m, true, x)`` is m or x."""
        if values[1] is not None:
            if values[1]:
                return self.map("or", mask, otherwise)
            return self.map("and", self.map("not", mask), otherwise)
        if values[2] is not None:
            if values[2]:
                return self.map("or", self.map("not", mask), then)
            return self.map("and", mask, then)
        return None

    def _fold_constants(self, function: str, tensors: tuple[Tensor, ...]) -> Tensor:
        entry = map_function(function)
        node = self.graph.intern(
            Op.MAP,
            [Operand(t.node, ()) for t in tensors],
            (),
            entry.result([t.dtype for t in tensors]),
            function,
        )
        value = self.static.value(node)
        return self.constant(value.item(), node.dtype)


def _is_map(tensor: Tensor, function: str) -> bool:
    return tensor.node.op is Op.MAP and tensor.node.attributes == function


def _negated(tensor: Tensor) -> Tensor:
    """What a NOT is applied to."""
    operand = tensor.node.operands[0]
    return Tensor(operand.node, tuple(tensor.axes[i] for i in operand.axes))


def slice_node(graph: Graph, node: Node, axis: int, position: int) -> Node:
    """``node`` at one position along ``axis``, seen through PLACE and STACK."""
    shape = node.shape[:axis] + node.shape[axis + 1 :]
    if node.op is Op.IOTA:
        return graph.constant(position, node.dtype)
    if node.op is Op.STACK and node.attributes == axis:
        return node.operands[position].node
    operand = Operand(node, tuple(range(node.rank)))
    return graph.intern(Op.SLICE, [operand], shape, node.dtype, (axis, position))


__all__ = ["Axis", "Tensor", "TensorBuilder", "slice_node"]

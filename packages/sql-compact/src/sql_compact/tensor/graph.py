"""The tensor program: interned nodes with positional axes.

Axes have no names here. A node's operands say which axis of the node's *iteration
space* each of their axes runs along, so two sub-programs that compute the same thing
are one node whatever their tables called the dims. The iteration space of each
operation, with output axes first:

=============  ================================================================
``INPUT``      a registered column (attribute: its name)
``CONSTANT``   a scalar (attribute: value)
``DATA``       an array known when the program is built (attribute: the array)
``IOTA``       positions 0..n-1 along one axis
``MAP``        elementwise function (attribute: its name), broadcasting
``REDUCE``     sum, max, min, any, all over some axes of one operand (function, axes)
``CONTRACT``   sum over a product of operands; output axes 0..r-1, then summed axes
``GATHER``     operand 0 read along one axis (marked -1) at integer operand 1
``SLICE``      one position along an axis (axis, position)
``PLACE``      zeros with the operand at one position along a new axis (axis, position)
``STACK``      operands side by side along a new axis (axis)
``DIAGONAL``   axis q read at the position of axis p < q, and dropped (p, q)
``DROPOUT``    which elements of a dense array a dropout site keeps; operands p, seed,
               step, site (see :mod:`sql_compact.functions.dropout`)
``ATTENTION``  fused softmax attention (see :mod:`sql_compact.rewrites.attention`)
=============  ================================================================
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from ..dtypes import DType
from ..precision import Precision


class Op(Enum):
    INPUT = "input"
    CONSTANT = "constant"
    DATA = "data"
    IOTA = "iota"
    MAP = "map"
    REDUCE = "reduce"
    CONTRACT = "contract"
    GATHER = "gather"
    SLICE = "slice"
    PLACE = "place"
    STACK = "stack"
    DIAGONAL = "diagonal"
    DROPOUT = "dropout"
    ATTENTION = "attention"


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operation of a tensor program; equal operations are the same object.

    Attributes:
        index: creation order within the graph; operands come before their users.
        shape: size of each output axis.
        attributes: what the operation needs besides operands (see the module table).
    """

    index: int
    op: Op
    operands: tuple[Operand, ...]
    shape: tuple[int, ...]
    dtype: DType
    attributes: Hashable = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return self.size * self.dtype.numpy.itemsize

    def __repr__(self) -> str:
        return f"%{self.index}:{self.op.value}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Operand:
    """A node read with each of its axes along the given axis of the iteration space."""

    node: Node
    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Array:
    """An array that is part of the program; equal by content."""

    values: np.ndarray = field(compare=False)
    digest: bytes

    @staticmethod
    def of(values: np.ndarray) -> Array:
        values = np.ascontiguousarray(values)
        header = f"{values.dtype}{values.shape}".encode()
        return Array(values, hashlib.sha256(header + values.tobytes()).digest())


@dataclass(frozen=True, slots=True)
class Scalar:
    """A constant's value; unlike Python's, 0.0 and -0.0 or 1 and True are different.

    ``tangent`` marks the zero that ``x - stop_gradient(x)`` stands for: exactly zero
    whatever x is, so anything times it is zero and adding it changes nothing.
    """

    value: bool | int | float = field(compare=False)
    key: str
    tangent: bool = False

    @staticmethod
    def of(value: bool | int | float, tangent: bool = False) -> Scalar:
        return Scalar(value, repr(value), tangent)


class Graph:
    """Interns nodes: asking twice for the same operation gives the same node.

    Under a precision below float64 every float array is float32 in the graph, so casts
    between float types vanish (see :class:`sql_compact.precision.Precision`).
    """

    def __init__(self, precision: Precision) -> None:
        self.precision = precision
        self.nodes: list[Node] = []
        self._interned: dict[Hashable, Node] = {}

    def intern(
        self,
        op: Op,
        operands: Iterable[Operand],
        shape: Iterable[int],
        dtype: DType,
        attributes: Hashable = None,
    ) -> Node:
        operands, shape = tuple(operands), tuple(shape)
        dtype = self.precision.element(dtype, len(shape))
        key = (op, operands, shape, dtype, attributes)
        node = self._interned.get(key)
        if node is None:
            node = Node(len(self.nodes), op, operands, shape, dtype, attributes)
            self.nodes.append(node)
            self._interned[key] = node
        return node

    # --- leaves -----------------------------------------------------------------------

    def input(self, name: str, shape: tuple[int, ...], dtype: DType) -> Node:
        return self.intern(Op.INPUT, (), shape, dtype, name)

    def constant(self, value: bool | int | float, dtype: DType, tangent: bool = False) -> Node:
        if dtype.is_float:
            value = float(value)
        elif dtype.is_integer:
            value = int(value)
        else:
            value = bool(value)
        return self.intern(Op.CONSTANT, (), (), dtype, Scalar.of(value, tangent))

    def data(self, values: np.ndarray, dtype: DType) -> Node:
        values = np.asarray(values)
        values = values.astype(self.precision.element(dtype, values.ndim).numpy)
        return self.intern(Op.DATA, (), values.shape, dtype, Array.of(values))

    def iota(self, size: int) -> Node:
        return self.intern(Op.IOTA, (), (size,), DType.INT64)


def scalar_value(node: Node) -> bool | int | float | None:
    """The value of a constant node, else None."""
    return node.attributes.value if node.op is Op.CONSTANT else None


def is_tangent_zero(node: Node) -> bool:
    return node.op is Op.CONSTANT and node.attributes.tangent


def topological(outputs: Iterable[Node]) -> list[Node]:
    """Every node the outputs need, operands first."""
    seen: dict[int, Node] = {}
    stack = list(outputs)
    while stack:
        node = stack.pop()
        if node.index not in seen:
            seen[node.index] = node
            stack.extend(operand.node for operand in node.operands)
    return [seen[i] for i in sorted(seen)]

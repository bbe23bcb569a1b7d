"""Recognizers that several rules share."""

from __future__ import annotations

from ..tensor.graph import Op, is_tangent_zero, scalar_value
from ..tensor.labelled import Axis, Tensor
from .engine import Rewriter, View


def match(rewriter: Rewriter, tensor: Tensor, op: Op, attributes: object = None) -> View | None:
    """The tensor's operation, if it is this one."""
    node = tensor.node
    if node.op is not op or (attributes is not None and node.attributes != attributes):
        return None
    return rewriter.expose(tensor)


def match_map(rewriter: Rewriter, tensor: Tensor, function: str) -> tuple[Tensor, ...] | None:
    """The operands of an elementwise function, if the tensor is one."""
    view = match(rewriter, tensor, Op.MAP, function)
    return None if view is None else view.operands


def match_sum(rewriter: Rewriter, tensor: Tensor) -> tuple[Tensor, tuple[Axis, ...]] | None:
    """The summand and the summed axes, if the tensor is a sum over axes."""
    if tensor.node.op is not Op.REDUCE or tensor.node.attributes[0] != "sum":
        return None
    view = rewriter.expose(tensor)
    return view.operands[0], view.reduced


def is_zero(tensor: Tensor) -> bool:
    """Whether the tensor is the constant 0 (of either kind, with a clear sign)."""
    value = scalar_value(tensor.node)
    return is_tangent_zero(tensor.node) or (value == 0 and str(value)[0] != "-")


def match_masked(rewriter: Rewriter, tensor: Tensor) -> tuple[Tensor, Tensor] | None:
    """The mask and the value of ``where(mask, value, 0)``."""
    operands = match_map(rewriter, tensor, "where")
    if operands is None or not is_zero(operands[2]):
        return None
    return operands[0], operands[1]


def match_one_position(rewriter: Rewriter, mask: Tensor) -> tuple[Axis, int] | None:
    """The axis and the position of a mask that holds at one fixed position of one axis."""
    operands = match_map(rewriter, mask, "equal")
    if operands is None:
        return None
    for index, position in (operands, operands[::-1]):
        value = scalar_value(position.node)
        if value is not None and index.node.op is Op.IOTA:
            return index.axes[0], int(value)
    return None


def all_of(rewriter: Rewriter, mask: Tensor) -> list[Tensor]:
    """The operands of nested ANDs."""
    operands = match_map(rewriter, mask, "and")
    if operands is None:
        return [mask]
    return [m for operand in operands for m in all_of(rewriter, operand)]


def any_of(rewriter: Rewriter, mask: Tensor) -> list[Tensor]:
    """The operands of nested ORs."""
    operands = match_map(rewriter, mask, "or")
    if operands is None:
        return [mask]
    return [m for operand in operands for m in any_of(rewriter, operand)]

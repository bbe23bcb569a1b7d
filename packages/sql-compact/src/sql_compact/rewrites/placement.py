"""Rules on masks that fix a position, and on masks around what is already masked.

A weight table stacked over layers is read one layer at a time, so each layer's gradient
is a value at one position of the ``layer`` axis: ``where(layer = 3, g, 0)`` is PLACE.
"""

from __future__ import annotations

from ..tensor.graph import Op, Operand
from ..tensor.labelled import Axis, Tensor
from .engine import Pass, Rewriter, View
from .patterns import (
    all_of,
    any_of,
    is_zero,
    match,
    match_map,
    match_masked,
    match_one_position,
    match_sum,
)


def place_at_position(rewriter: Rewriter, view: View) -> Tensor | None:
    """``where(i = k, x, 0)`` with x independent of i → PLACE of x at k."""
    if view.attributes != "where" or not is_zero(view.operands[2]):
        return None
    mask, value, zero = view.operands
    masks = all_of(rewriter, mask)
    for i, term in enumerate(masks):
        fixed = match_one_position(rewriter, term)
        if fixed is None or fixed[0] in value.axes:
            continue
        rest = rewriter.builder.conjunction(masks[:i] + masks[i + 1 :])
        if rest is not None:
            if fixed[0] in rest.axes:
                continue
            value = rewriter.builder.map("where", rest, value, zero)
        return place(rewriter, value, *fixed)
    return None


def place(rewriter: Rewriter, value: Tensor, axis: Axis, position: int) -> Tensor:
    """Zeros with ``value`` at one position of a new axis."""
    operand = Operand(value.node, tuple(range(1, value.node.rank + 1)))
    shape = (axis.size, *value.node.shape)
    node = rewriter.graph.intern(Op.PLACE, [operand], shape, value.dtype, (0, position))
    return Tensor(node, (axis, *value.axes))


def already_zero(rewriter: Rewriter, view: View) -> Tensor | None:
    """``where(group exists, sum, 0)`` → the sum, which is 0 where no row was added."""
    if view.attributes != "where" or not is_zero(view.operands[2]):
        return None
    mask, value, _ = view.operands
    return value if _zero_outside(rewriter, value, mask) else None


def _zero_outside(rewriter: Rewriter, value: Tensor, mask: Tensor) -> bool:
    """Whether ``value`` is certainly 0 where ``mask`` is false."""
    if is_zero(value):
        return True
    masked = match_masked(rewriter, value)
    if masked is not None:
        return masked[0] == mask or _zero_outside(rewriter, masked[1], mask)
    added = match_map(rewriter, value, "add")
    if added is not None:
        parts = any_of(rewriter, mask)
        return all(any(_zero_outside(rewriter, t, part) for part in parts) for t in added)
    placed = match(rewriter, value, Op.PLACE)
    if placed is not None:
        axis, position = value.node.attributes
        return match_one_position(rewriter, mask) == (value.axes[axis], position)
    summed = match_sum(rewriter, value)
    if summed is not None:
        return _sum_of_masked(rewriter, *summed, mask)
    return False


def _sum_of_masked(
    rewriter: Rewriter, value: Tensor, reduced: tuple[Axis, ...], mask: Tensor
) -> bool:
    """Whether the sum is over rows whose existence the mask says."""
    masked = match_masked(rewriter, value)
    if masked is None:
        return False
    if mask.node.op is Op.REDUCE and mask.node.attributes[0] == "any":
        rows = rewriter.builder.reduce("any", masked[0], reduced)
        return rows == mask
    return masked[0] == mask


PLACEMENT = Pass("placement", {Op.MAP: (already_zero, place_at_position)})

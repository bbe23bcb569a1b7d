"""Rules on sums of terms: gradients arrive as one term for each path.

Adding before multiplying, masking, reducing or scattering does each of those once
instead of once for every path. Only float sums are reordered.
"""

from __future__ import annotations

from ..tensor.graph import Op, Operand
from ..tensor.labelled import Axis, Tensor
from .engine import Pass, Rewriter, View
from .patterns import is_zero, match_map, match_masked, match_sum


def _terms(view: View) -> tuple[Tensor, Tensor] | None:
    """The two terms of a float addition."""
    if view.attributes != "add" or not view.node.dtype.is_float:
        return None
    return view.operands[0], view.operands[1]


def add_masked(rewriter: Rewriter, view: View) -> Tensor | None:
    """``where(m, a, 0) + where(m, b, 0)`` → ``where(m, a + b, 0)``."""
    terms = _terms(view)
    if terms is None:
        return None
    a, b = (match_masked(rewriter, t) for t in terms)
    if a is None or b is None or a[0] != b[0]:
        return None
    zero = rewriter.builder.constant(0.0, view.node.dtype)
    return rewriter.builder.map("where", a[0], add(rewriter, a[1], b[1]), zero)


def common_factor(rewriter: Rewriter, view: View) -> Tensor | None:
    """``a * m + b * m`` → ``(a + b) * m``."""
    terms = _terms(view)
    if terms is None or not _share_operand(*terms):
        return None
    left, right = (match_map(rewriter, t, "multiply") for t in terms)
    if left is None or right is None:
        return None
    for i in (0, 1):
        for j in (0, 1):
            if left[i] == right[j]:
                return rewriter.builder.map(
                    "multiply", add(rewriter, left[1 - i], right[1 - j]), left[i]
                )
    return None


def _share_operand(a: Tensor, b: Tensor) -> bool:
    """Whether both read one node: without it no factor is common, and labels need no look."""
    read = [o.node for o in a.node.operands]
    return any(o.node in read for o in b.node.operands)


def add_sums(rewriter: Rewriter, view: View) -> Tensor | None:
    """``sum(a) + sum(b)`` over axes of the same sizes → ``sum(a + b)``.

    Not for products of different factors, each of which is better as a contraction.
    """
    terms = _terms(view)
    if terms is None:
        return None
    left, right = (match_sum(rewriter, t) for t in terms)
    if left is None or right is None:
        return None
    a, over = left
    b, others = right
    if [x.size for x in over] != [x.size for x in others] or set(a.axes) - set(over) != (
        set(b.axes) - set(others)
    ):
        return None
    b = Tensor(b.node, tuple(dict(zip(others, over, strict=True)).get(x, x) for x in b.axes))
    if set(a.axes) != set(b.axes):
        return None
    if not _joinable(rewriter, a, b):
        return None
    return rewriter.builder.reduce_all("sum", add(rewriter, a, b), over)


def _joinable(rewriter: Rewriter, a: Tensor, b: Tensor) -> bool:
    masked_a, masked_b = match_masked(rewriter, a), match_masked(rewriter, b)
    if masked_a is not None or masked_b is not None:
        return masked_a is not None and masked_b is not None and masked_a[0] == masked_b[0]
    left, right = match_map(rewriter, a, "multiply"), match_map(rewriter, b, "multiply")
    if left is None or right is None:
        return left is None and right is None
    return any(x == y for x in left for y in right)


def add_to_term(rewriter: Rewriter, view: View) -> Tensor | None:
    """``(a + b) + c`` → ``a' + b``, where a rule of this pass adds a and c into a'.

    Gradients arrive as one long sum; terms of a kind are rarely neighbours in it.
    """
    terms = _terms(view)
    if terms is None:
        return None
    left = match_map(rewriter, terms[0], "add")
    right = match_map(rewriter, terms[1], "add")
    chain, term = (left, terms[1]) if left is not None else (right, terms[0])
    if chain is None:
        return None
    for i, member in enumerate(chain):
        total = _merged(rewriter, member, term)
        if total is not None:
            return rewriter.builder.map("add", total, chain[1 - i])
    return None


def _merged(rewriter: Rewriter, a: Tensor, b: Tensor) -> Tensor | None:
    """``a + b`` if a rule merges the two (or a part of a) into one term."""
    total = rewriter.builder.map("add", a, b)
    if total.node.op is not Op.MAP or total.node.attributes != "add":
        return total
    if total.node in rewriter.apart:
        return None
    view = rewriter.expose(total)
    for rule in (*_MERGING, add_to_term):
        result = rule(rewriter, view)
        if result is not None:
            return result
    rewriter.apart.add(total.node)
    return None


def constant_out_of_sum(rewriter: Rewriter, view: View) -> Tensor | None:
    """``sum(k * a)`` → ``k * sum(a)`` for a constant k."""
    if view.attributes[0] != "sum" or not view.node.dtype.is_float:
        return None
    product = match_map(rewriter, view.operands[0], "multiply")
    if product is None:
        return None
    for constant, value in (product, product[::-1]):
        if constant.node.op is Op.CONSTANT:
            total = rewriter.builder.reduce_all("sum", value, view.reduced)
            return rewriter.builder.map("multiply", total, constant)
    return None


def stack_places(rewriter: Rewriter, view: View) -> Tensor | None:
    """A sum of values at different positions of an axis → STACK of the values."""
    terms = _terms(view)
    if terms is None:
        return None
    slots = [_slots(rewriter, t) for t in terms]
    if slots[0] is None or slots[1] is None or slots[0][0] is not slots[1][0]:
        return None
    axis = slots[0][0]
    merged = dict(slots[0][1])
    for position, value in slots[1][1].items():
        merged[position] = add(rewriter, merged[position], value) if position in merged else value
    return stack(rewriter, merged, axis, view)


def stack(rewriter: Rewriter, slots: dict[int, Tensor], axis: Axis, view: View) -> Tensor:
    """The values side by side along ``axis``, zeros where there is none."""
    axes = tuple(a for a in view.axes if a is not axis)
    zero = rewriter.builder.constant(0.0, view.node.dtype)
    at = tuple(range(1, len(axes) + 1))
    operands = []
    for position in range(axis.size):
        value = slots.get(position)
        if value is None:
            operands.append(Operand(zero.node, ()))
        else:
            operands.append(Operand(rewriter.builder.arrange(value, axes), at))
    shape = (axis.size, *(a.size for a in axes))
    node = rewriter.graph.intern(Op.STACK, operands, shape, view.node.dtype, 0)
    return Tensor(node, (axis, *axes))


def _slots(rewriter: Rewriter, tensor: Tensor) -> tuple[Axis, dict[int, Tensor]] | None:
    """The axis and the values by position of a PLACE, or of a STACK with zeros."""
    if tensor.node.op is Op.PLACE:
        at, position = tensor.node.attributes
        return tensor.axes[at], {position: rewriter.expose(tensor).operands[0]}
    if tensor.node.op is Op.STACK:
        operands = rewriter.expose(tensor).operands
        values = {i: t for i, t in enumerate(operands) if not is_zero(t)}
        return tensor.axes[tensor.node.attributes], values
    return None


def add(rewriter: Rewriter, a: Tensor, b: Tensor) -> Tensor:
    """``a + b``, itself through the rules of this pass."""
    total = rewriter.builder.map("add", a, b)
    if total.node.op is not Op.MAP or total.node.attributes != "add":
        return total
    return rewriter.apply(SUMS, rewriter.expose(total))


#: Rules that make one term of two.
_MERGING = (stack_places, common_factor, add_masked, add_sums)

SUMS = Pass("sums", {Op.MAP: (*_MERGING, add_to_term), Op.REDUCE: (constant_out_of_sum,)})

"""Rules on products of arrays of different sizes: the small factors first.

A layer norm's derivative, as written, multiplies and divides whole arrays by values of one
row again and again. Combined among themselves first, those values cost nothing, and what
does not depend on a summed axis leaves the sum. Products of floats are reassociated, which
SQL does not do, so these rules are only for programs that ask for it (training steps,
whose results are checked to be finite).
"""

from __future__ import annotations

from ..tensor.graph import Op, scalar_value
from ..tensor.labelled import Tensor
from .engine import Pass, Rewriter, View
from .patterns import match_map


def reciprocal_of_smaller(rewriter: Rewriter, view: View) -> Tensor | None:
    """``a / b`` → ``a * (1 / b)`` where b has fewer axes than the result."""
    if view.attributes != "divide" or not view.node.dtype.is_float:
        return None
    a, b = view.operands
    if len(b.axes) == len(view.axes) or scalar_value(a.node) is not None or not a.axes:
        return None
    one = rewriter.builder.constant(1.0, b.dtype if b.dtype.is_float else view.node.dtype)
    return multiply(rewriter, a, rewriter.builder.map("divide", one, b))


def negation_is_product(rewriter: Rewriter, view: View) -> Tensor | None:
    """``-a`` → ``-1 * a``, so that the sign joins the other constants."""
    if view.attributes != "negate" or not view.node.dtype.is_float or not view.axes:
        return None
    minus = rewriter.builder.constant(-1.0, view.node.dtype)
    return multiply(rewriter, view.operands[0], minus)


def smaller_first(rewriter: Rewriter, view: View) -> Tensor | None:
    """``(a * s) * t`` → ``a * (s * t)`` where s * t is smaller than the result."""
    for product, outer in _products(rewriter, view):
        for whole, inner in (product, product[::-1]):
            space = set(view.axes)
            small = set(inner.axes) | set(outer.axes)
            if small < space and set(whole.axes) == space:
                return multiply(rewriter, whole, multiply(rewriter, inner, outer))
    return None


def smaller_last(rewriter: Rewriter, view: View) -> Tensor | None:
    """``(a * s) * b`` → ``(a * b) * s`` where s is smaller than a and b."""
    for product, outer in _products(rewriter, view):
        for whole, inner in (product, product[::-1]):
            space = set(view.axes)
            if set(inner.axes) < space and set(whole.axes) == set(outer.axes) == space:
                return multiply(rewriter, multiply(rewriter, whole, outer), inner)
    return None


def _products(rewriter: Rewriter, view: View) -> list[tuple[tuple[Tensor, ...], Tensor]]:
    """Each operand that is a float product itself, with the other operand."""
    if view.attributes != "multiply" or not view.node.dtype.is_float:
        return []
    found = []
    for product, outer in (view.operands, view.operands[::-1]):
        factors = match_map(rewriter, product, "multiply")
        if factors is not None:
            found.append((factors, outer))
    return found


def independent_out_of_sum(rewriter: Rewriter, view: View) -> Tensor | None:
    """``sum(a * s)`` → ``sum(a) * s`` where s does not depend on the summed axes."""
    if view.attributes[0] != "sum" or not view.node.dtype.is_float:
        return None
    product = match_map(rewriter, view.operands[0], "multiply")
    if product is None:
        return None
    for value, factor in (product, product[::-1]):
        if not set(factor.axes) & set(view.reduced) and set(view.reduced) <= set(value.axes):
            total = rewriter.builder.reduce_all("sum", value, view.reduced)
            return multiply(rewriter, total, factor)
    return None


def multiply(rewriter: Rewriter, a: Tensor, b: Tensor) -> Tensor:
    """``a * b``, itself through the rules of this pass."""
    product = rewriter.builder.map("multiply", a, b)
    if product.node.op is not Op.MAP or product.node.attributes != "multiply":
        return product
    return rewriter.apply(PRODUCTS, rewriter.expose(product))


PRODUCTS = Pass(
    "products",
    {
        Op.MAP: (reciprocal_of_smaller, negation_is_product, smaller_first, smaller_last),
        Op.REDUCE: (independent_out_of_sum,),
    },
)

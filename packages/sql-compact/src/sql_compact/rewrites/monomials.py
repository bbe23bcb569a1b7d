"""Products taken apart: a coefficient and powers of what is multiplied and divided."""

from __future__ import annotations

from dataclasses import dataclass

from ..tensor.graph import Op, scalar_value
from ..tensor.labelled import Tensor
from .engine import Rewriter
from .patterns import match_map


@dataclass(frozen=True, slots=True)
class Monomial:
    """``coefficient * product of tensor ** power``."""

    coefficient: float
    powers: dict[Tensor, int]

    def times(self, other: Monomial, sign: int = 1) -> Monomial:
        """The product, or with ``sign`` -1 the quotient."""
        powers = dict(self.powers)
        for tensor, power in other.powers.items():
            powers[tensor] = powers.get(tensor, 0) + sign * power
        coefficient = self.coefficient * other.coefficient**sign
        return Monomial(coefficient, {t: p for t, p in powers.items() if p})


def monomial(rewriter: Rewriter, tensor: Tensor) -> Monomial:
    """The product that ``tensor`` is, through multiplications, divisions and negations."""
    value = scalar_value(tensor.node)
    if value is not None and tensor.dtype.is_float and value != 0:
        return Monomial(float(value), {})
    product = match_map(rewriter, tensor, "multiply")
    if product is not None:
        return monomial(rewriter, product[0]).times(monomial(rewriter, product[1]))
    quotient = match_map(rewriter, tensor, "divide")
    if quotient is not None and tensor.dtype.is_float:
        return monomial(rewriter, quotient[0]).times(monomial(rewriter, quotient[1]), -1)
    negated = match_map(rewriter, tensor, "negate")
    if negated is not None:
        return Monomial(-1.0, {}).times(monomial(rewriter, negated[0]))
    if not tensor.axes and tensor.node.op is Op.MAP and _is_cast(tensor):
        return monomial(rewriter, rewriter.expose(tensor).operands[0])
    return Monomial(1.0, {tensor: 1})


def expanded(rewriter: Rewriter, tensor: Tensor) -> list[Monomial]:
    """The sum of products that ``tensor`` is, with its sums multiplied out."""
    added = match_map(rewriter, tensor, "add")
    if added is not None:
        return [m for term in added for m in expanded(rewriter, term)]
    product = monomial(rewriter, tensor)
    for factor, power in product.powers.items():
        if power == 1 and match_map(rewriter, factor, "add") is not None:
            rest = product.times(Monomial(1.0, {factor: 1}), -1)
            return [rest.times(term) for term in expanded(rewriter, factor)]
    return [product]


def _is_cast(tensor: Tensor) -> bool:
    """A change of a number's float type, which no product depends on."""
    operand = tensor.node.operands[0].node
    return str(tensor.node.attributes).startswith("cast:") and operand.dtype.is_float

"""Rules that turn sums of products into contractions.

``sum(a * b)`` over an axis that a and b share is one matrix product. Masks inside the sum
go into a factor that has their axes, out of the sum where they do not depend on it, or
become a factor themselves (a selection). A mask in one factor multiplies what it hides by
zero, which is only right where the other factors are finite: those are recorded in
:attr:`Rewriter.finite`.
"""

from __future__ import annotations

from ..tensor.graph import Op
from ..tensor.labelled import Axis, Tensor
from .engine import Pass, Rewriter, View
from .patterns import all_of, match_map, match_masked


def contract_products(rewriter: Rewriter, view: View) -> Tensor | None:
    """``sum(where(m, a * b, 0))`` → CONTRACT of the masked factors."""
    if view.attributes[0] != "sum" or not view.node.dtype.is_float:
        return None
    masks, factors = _factors(rewriter, view.operands[0])
    b = rewriter.builder
    inside = [m for m in masks if set(m.axes) & set(view.reduced)]
    outside = [m for m in masks if not set(m.axes) & set(view.reduced)]
    if inside and rewriter.exact:
        return None
    placed = _place_masks(rewriter, inside, factors)
    space = {a for f in placed for a in f.axes}
    if len(placed) < 2 or any(set(f.axes) >= space for f in placed):
        # One factor covers the whole space: an elementwise product, then a plain sum.
        if not outside:
            return None
        value = (
            view.operands[0] if len(outside) == 0 else _masked_product(rewriter, inside, factors)
        )
        result = b.reduce_all("sum", value, view.reduced)
    else:
        apart = _summed_apart(placed, view.reduced)
        if apart and rewriter.exact:
            return None
        _assume_finite(rewriter, inside, factors, placed)
        result = _ordered(rewriter, placed, view.reduced)
        if apart:
            # An infinity times each of several values is not an infinity times their sum; where
            # the result is finite, so are all values that it is made of.
            rewriter.finite[result.node] = None
    if outside:
        zero = b.constant(0.0, result.dtype)
        mask = b.conjunction(outside)
        assert mask is not None
        result = b.map("where", mask, result, zero)
    return result


def _summed_apart(factors: list[Tensor], over: tuple[Axis, ...]) -> bool:
    """Whether some factors are summed before others are multiplied."""
    shaped = [f for f in factors if f.axes]
    if len(shaped) > 2 or any(not f.axes and f.node.op is not Op.CONSTANT for f in factors):
        return True
    space = {a for f in shaped for a in f.axes}
    return any(a in space and a not in f.axes for a in over for f in shaped)


def _factors(rewriter: Rewriter, value: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Masks and factors of a product.

    A product is taken apart at the top, and below where it is larger than both of its
    operands (an outer product that must not be stored).
    """
    masked = match_masked(rewriter, value)
    if masked is not None:
        masks, factors = _factors(rewriter, masked[1])
        return all_of(rewriter, masked[0]) + masks, factors
    product = match_map(rewriter, value, "multiply")
    if product is None:
        return [], [value]
    masks, factors = [], []
    for operand in product:
        inner = match_masked(rewriter, operand) or match_map(rewriter, operand, "multiply")
        if inner is not None and _is_outer(operand):
            more_masks, more = _factors(rewriter, operand)
            masks += more_masks
            factors += more
        else:
            factors.append(operand)
    return masks, factors


def _is_outer(tensor: Tensor) -> bool:
    """Whether the tensor is larger than everything it is computed from."""
    return all(o.node.size < tensor.node.size for o in tensor.node.operands)


def _place_masks(rewriter: Rewriter, masks: list[Tensor], factors: list[Tensor]) -> list[Tensor]:
    """The factors with each mask inside one that has its axes, or as a factor itself."""
    b = rewriter.builder
    placed = list(factors)
    for mask in masks:
        for i, factor in enumerate(placed):
            if set(mask.axes) <= set(factor.axes):
                placed[i] = b.map("where", mask, factor, b.constant(0.0, factor.dtype))
                break
        else:
            placed.append(b.cast(mask, factors[0].dtype))
    return placed


def _masked_product(rewriter: Rewriter, masks: list[Tensor], factors: list[Tensor]) -> Tensor:
    b = rewriter.builder
    value = factors[0]
    for factor in factors[1:]:
        value = b.map("multiply", value, factor)
    mask = b.conjunction(masks)
    return b.where(mask, value, b.constant(0.0, value.dtype))


def _assume_finite(
    rewriter: Rewriter, masks: list[Tensor], factors: list[Tensor], placed: list[Tensor]
) -> None:
    """Record the factors that a mask in another factor multiplies by zero."""
    if not masks:
        return
    for before, after in zip(factors, placed, strict=False):
        if before == after or len(masks) > 1:
            rewriter.finite[before.node] = None


def _ordered(rewriter: Rewriter, factors: list[Tensor], over: tuple[Axis, ...]) -> Tensor:
    """A contraction of two factors, or of more in the order opt_einsum finds cheapest."""
    constants = [f for f in factors if not f.axes]
    factors = [f for f in factors if f.axes]
    b = rewriter.builder
    result = b.contract(factors, over) if len(factors) == 2 else _by_path(rewriter, factors, over)
    for constant in constants:
        result = b.map("multiply", result, constant)
    return result


def _by_path(rewriter: Rewriter, factors: list[Tensor], over: tuple[Axis, ...]) -> Tensor:
    import opt_einsum

    b = rewriter.builder
    letters: dict[Axis, str] = {}
    for factor in factors:
        for axis in factor.axes:
            letters.setdefault(axis, opt_einsum.get_symbol(len(letters)))
    terms = ["".join(letters[a] for a in f.axes) for f in factors]
    kept = [a for a in letters if a not in over]
    equation = ",".join(terms) + "->" + "".join(letters[a] for a in kept)
    path, _ = opt_einsum.contract_path(
        equation, *(f.node.shape for f in factors), shapes=True, optimize="auto"
    )
    remaining = list(factors)
    for step in path:
        chosen = [remaining[i] for i in step]
        remaining = [f for i, f in enumerate(remaining) if i not in step]
        elsewhere = {a for f in remaining for a in f.axes} | set(kept)
        used = dict.fromkeys(a for f in chosen for a in f.axes)
        remaining.append(_pair(rewriter, chosen, tuple(a for a in used if a not in elsewhere)))
    missing = tuple(a for a in over if a not in letters)
    return b.reduce_all("sum", remaining[0], missing) if missing else remaining[0]


def _pair(rewriter: Rewriter, factors: list[Tensor], over: tuple[Axis, ...]) -> Tensor:
    """One step of a path: an elementwise product unless axes are summed."""
    b = rewriter.builder
    if len(factors) == 1:
        return b.reduce("sum", factors[0], over)
    space = {a for f in factors for a in f.axes}
    if not over or any(set(f.axes) >= space for f in factors):
        value = factors[0]
        for factor in factors[1:]:
            value = b.map("multiply", value, factor)
        return b.reduce("sum", value, over)
    return b.contract(factors, over)


CONTRACTIONS = Pass("contractions", {Op.REDUCE: (contract_products,)})

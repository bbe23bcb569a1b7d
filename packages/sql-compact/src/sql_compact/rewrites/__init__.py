"""Rewrite rules of the tensor program, as an ordered list of passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..tensor.graph import Node
from ..tensor.labelled import Tensor, TensorBuilder
from .attention import AttentionCall, fuse_attention
from .contractions import CONTRACTIONS
from .dropout import DROPOUT
from .engine import Pass, Rewriter
from .extremes import EXTREMES, compared
from .placement import PLACEMENT
from .products import PRODUCTS
from .sums import SUMS

PASSES: tuple[Pass, ...] = (DROPOUT, PLACEMENT, SUMS, PLACEMENT, CONTRACTIONS, EXTREMES)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A program after every pass.

    Attributes:
        outputs: in the order given, possibly with axes in another order or left out
            (the value is the same along those).
        finite: values that were assumed to be finite everywhere.
        ordered: values that are compared as if they had no NaN.
    """

    outputs: tuple[Tensor, ...]
    finite: tuple[Node, ...]
    ordered: tuple[Node, ...]


def rewrite(
    builder: TensorBuilder,
    outputs: Sequence[Tensor],
    *,
    exact: bool = False,
    reassociate: bool = False,
    after_pass: Callable[[Pass, Sequence[Tensor]], None] | None = None,
) -> Rewritten:
    """Run every pass over the program that computes ``outputs``.

    Args:
        exact: apply no rule that assumes values to be finite.
        reassociate: combine the factors of float products in another order.
        after_pass: called with each pass and the outputs after it, to look at the program.
    """
    rewriter = Rewriter(builder, exact=exact)
    current = list(outputs)
    for stage in PASSES:
        current = rewriter.run(stage, current)
        if after_pass is not None:
            after_pass(stage, current)
    if not exact:
        current = fuse_attention(rewriter, current)
    if reassociate:
        current = rewriter.run(PRODUCTS, current)
        if after_pass is not None:
            after_pass(PRODUCTS, current)
    return Rewritten(tuple(current), tuple(rewriter.finite), compared(t.node for t in current))


__all__ = ["PASSES", "AttentionCall", "Rewritten", "rewrite"]

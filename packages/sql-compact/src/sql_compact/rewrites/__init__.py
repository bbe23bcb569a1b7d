"""Rewrite rules of the tensor program, as an ordered list of passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..tensor.graph import Node
from ..tensor.labelled import Tensor, TensorBuilder
from .contractions import CONTRACTIONS
from .dropout import DROPOUT
from .engine import Pass, Rewriter
from .placement import PLACEMENT
from .sums import SUMS

PASSES: tuple[Pass, ...] = (DROPOUT, PLACEMENT, SUMS, PLACEMENT, CONTRACTIONS)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A program after every pass.

    Attributes:
        outputs: in the order given, possibly with axes in another order or left out
            (the value is the same along those).
        finite: values that were assumed to be finite everywhere.
    """

    outputs: tuple[Tensor, ...]
    finite: tuple[Node, ...]


def rewrite(
    builder: TensorBuilder, outputs: Sequence[Tensor], *, exact: bool = False
) -> Rewritten:
    """Run every pass over the program that computes ``outputs``.

    Args:
        exact: apply no rule that assumes values to be finite.
    """
    rewriter = Rewriter(builder, exact=exact)
    current = list(outputs)
    for stage in PASSES:
        current = rewriter.run(stage, current)
    return Rewritten(tuple(current), tuple(rewriter.finite))


__all__ = ["PASSES", "Rewritten", "rewrite"]

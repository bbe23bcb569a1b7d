"""Lowering of contractions to matrix products.

The iteration axes of ``sum_k a * b`` fall into batch axes (in both and the output), rows
(in a and the output), columns (in b and the output) and summed axes. Each group is
flattened in the order that needs no copy where there is one, and the product is one
``mm`` or ``bmm``. All of it is decided from the shapes when the program is lowered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..tensor.graph import Node


@dataclass(frozen=True, slots=True)
class Factor:
    """How one factor becomes a matrix (or a batch of them).

    Attributes:
        alone: axes summed first, since neither the other factor nor the output has them.
        order: permutation of the remaining axes.
        shape: of the matrix.
    """

    alone: tuple[int, ...]
    order: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """A contraction as ``(b)mm(left, right)``.

    Attributes:
        swapped: the contraction's second factor is the left matrix.
        shape, order: of the result: unflattened, then permuted to the output's axes.
    """

    left: Factor
    right: Factor
    swapped: bool
    batched: bool
    shape: tuple[int, ...]
    order: tuple[int, ...]


def matrix_product(node: Node) -> MatrixProduct:
    """The product that computes a CONTRACT node of two factors."""
    a, b = node.operands
    sizes = dict(zip(a.axes, a.node.shape, strict=True))
    sizes |= dict(zip(b.axes, b.node.shape, strict=True))
    rank = node.rank
    left = [x for x in a.axes if x < rank or x in b.axes]
    right = [x for x in b.axes if x < rank or x in a.axes]
    batch = [x for x in left if x in right and x < rank]
    summed = [x for x in left if x in right and x >= rank]
    rows = [x for x in left if x not in right]
    columns = [x for x in right if x not in left]
    # The transpose, where the output's own order then comes out contiguous.
    swapped = bool(rows and columns and min(columns) < min(rows))
    if swapped:
        a, b, left, right, rows, columns = b, a, right, left, columns, rows

    def extent(axes: Sequence[int]) -> int:
        return math.prod([sizes[x] for x in axes])

    batches = (extent(batch),) if batch else ()
    m, k, n = extent(rows), extent(summed), extent(columns)
    order = [*batch, *rows, *columns]
    return MatrixProduct(
        _factor(a.axes, left, (*batch, *rows, *summed), (*batches, m, k)),
        _factor(b.axes, right, (*batch, *summed, *columns), (*batches, k, n)),
        swapped,
        bool(batch),
        tuple(sizes[x] for x in order),
        tuple(order.index(x) for x in range(rank)),
    )


def _factor(
    axes: Sequence[int], kept: Sequence[int], wanted: Sequence[int], shape: tuple[int, ...]
) -> Factor:
    alone = tuple(i for i, x in enumerate(axes) if x not in kept)
    return Factor(alone, tuple(kept.index(x) for x in wanted), shape)

"""Lowering of contractions to matrix products.

The iteration axes of ``sum_k a * b`` fall into batch axes (in both and the output), rows
(in a and the output), columns (in b and the output) and summed axes. Each group is
flattened in the order that needs no copy where there is one, and the product is one
``mm`` or ``bmm``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def contract(
    a: torch.Tensor,
    b: torch.Tensor,
    left: tuple[int, ...],
    right: tuple[int, ...],
    rank: int,
) -> torch.Tensor:
    """Sum of ``a * b`` over the iteration axes that are not output axes.

    Args:
        left, right: iteration axis of each axis of ``a`` and of ``b``.
        rank: the first ``rank`` iteration axes are the output's, in order.
    """
    a, left = _sum_alone(a, left, right, rank)
    b, right = _sum_alone(b, right, left, rank)
    batch = [x for x in left if x in right and x < rank]
    rows = [x for x in left if x not in right]
    columns = [x for x in right if x not in left]
    summed = [x for x in left if x in right and x >= rank]
    if rows and columns and min(columns) < min(rows):
        # Compute the transpose, so that the output's own order comes out contiguous.
        a, b, left, right, rows, columns = b, a, right, left, columns, rows
    sizes = dict(zip(left, a.shape, strict=True)) | dict(zip(right, b.shape, strict=True))
    a = a.permute([left.index(x) for x in (*batch, *rows, *summed)])
    b = b.permute([right.index(x) for x in (*batch, *summed, *columns)])

    def extent(axes: Sequence[int]) -> int:
        return math.prod(sizes[x] for x in axes)

    m, k, n = extent(rows), extent(summed), extent(columns)
    if batch:
        g = extent(batch)
        product = torch.bmm(a.reshape(g, m, k), b.reshape(g, k, n))
    else:
        product = torch.mm(a.reshape(m, k), b.reshape(k, n))
    order = [*batch, *rows, *columns]
    product = product.reshape([sizes[x] for x in order])
    if order == sorted(order):
        return product
    return product.permute([order.index(x) for x in range(rank)])


def _sum_alone(
    a: torch.Tensor, axes: tuple[int, ...], other: tuple[int, ...], rank: int
) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Sum an operand over the axes that neither the other operand nor the output has."""
    alone = tuple(i for i, x in enumerate(axes) if x >= rank and x not in other)
    if not alone:
        return a, axes
    return a.sum(dim=alone), tuple(x for i, x in enumerate(axes) if i not in alone)

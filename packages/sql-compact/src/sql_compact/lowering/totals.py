"""Sums of whole arrays that are added up, computed together on CUDA.

A training step adds up whole arrays twice: squares of every gradient for the norm, and the
next state to see that it is finite. One reduction an array would read each array again after
the kernel that makes it, and end in two tiny kernels each. Sums along rows can be part of the
kernel that makes the array, and one sum over all row sums ends them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ..tensor.graph import Node, Op

#: Rows shorter than this are joined: a row is what one block of threads sums.
_ROW = 256


@dataclass(frozen=True, slots=True)
class Total:
    """An addition with terms that are sums of whole arrays.

    Attributes:
        arrays: at least two, whose elements are all added up.
        others: the other terms.
    """

    arrays: tuple[Node, ...]
    others: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of a program.

    Attributes:
        found: by the index of the node that holds the result.
        absorbed: nodes that only such a result needs, by index.
    """

    found: Mapping[int, Total] = field(default_factory=dict)
    absorbed: frozenset[int] = frozenset()


def find_totals(order: Sequence[Node], outputs: Sequence[Node]) -> Totals:
    """The largest trees of additions of numbers that have sums of float arrays as leaves.

    Args:
        order: every node of the program, operands first.
    """
    uses = Counter(o.node.index for node in order for o in node.operands)
    uses.update(node.index for node in outputs)
    found: dict[int, Total] = {}
    absorbed: set[int] = set()
    for node in reversed(order):
        if node.index in absorbed or not _is_addition(node):
            continue
        inner: set[int] = set()
        tree = _total(node, uses, inner)
        if len(tree.arrays) > 1:
            found[node.index] = tree
            absorbed |= inner
    return Totals(found, frozenset(absorbed))


def _is_addition(node: Node) -> bool:
    return node.op is Op.MAP and node.attributes == "add" and not node.rank and node.dtype.is_float


def _total(node: Node, uses: Mapping[int, int], inner: set[int]) -> Total:
    """The tree of additions below the node, noting the nodes in between."""
    arrays: list[Node] = []
    others: list[Node] = []
    pending = [o.node for o in reversed(node.operands)]
    while pending:
        part = pending.pop()
        chain = _chain_to_sum(part, uses)
        if _is_addition(part) and uses[part.index] == 1:
            inner.add(part.index)
            pending.extend(o.node for o in reversed(part.operands))
        elif chain:
            inner.update(n.index for n in chain)
            arrays.append(chain[-1].operands[0].node)
        else:
            others.append(part)
    return Total(tuple(arrays), tuple(others))


def _chain_to_sum(node: Node, uses: Mapping[int, int]) -> list[Node]:
    """The sum of a whole float array, and casts of it between float types, if nothing else
    reads any of them; outermost first."""
    chain = [node]
    while node.op is Op.MAP and str(node.attributes).startswith("cast:"):
        node = node.operands[0].node
        chain.append(node)
    is_sum = node.op is Op.REDUCE and node.attributes[0] == "sum" and not node.rank
    alone = all(n.dtype.is_float and uses[n.index] == 1 for n in chain)
    return chain if is_sum and alone else []


def total(arrays: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """The sum of all elements of all arrays, as a number of ``dtype``."""
    merged: list[torch.Tensor] = []
    for array in arrays:
        if merged and array.shape == merged[-1].shape and array.stride() == merged[-1].stride():
            merged[-1] = merged[-1] + array
        else:
            merged.append(array)
    return torch.cat([_row_sums(array).to(dtype) for array in merged]).sum()


def _row_sums(array: torch.Tensor) -> torch.Tensor:
    """Sums along the rows of an array, as they lie in memory."""
    rows = array.permute(sorted(range(array.dim()), key=array.stride, reverse=True))
    while rows.dim() > 1 and rows.shape[-1] < _ROW:
        rows = rows.flatten(-2)
    return rows.sum(-1).flatten()

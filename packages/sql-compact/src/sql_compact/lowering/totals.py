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

from ..tensor.graph import Node, Op, Operand

#: Rows shorter than this are joined: a row is what one block of threads sums.
_ROW = 256


@dataclass(frozen=True, slots=True)
class Totals:
    """Additions whose terms are sums of whole arrays.

    Attributes:
        terms: the arrays to add up, by the index of the node that holds the result.
        absorbed: nodes that only such a result needs, by index.
    """

    terms: Mapping[int, tuple[Node, ...]] = field(default_factory=dict)
    absorbed: frozenset[int] = frozenset()


def find_totals(order: Sequence[Node], outputs: Sequence[Node]) -> Totals:
    """The largest trees of additions all of whose leaves are sums of whole float arrays.

    Args:
        order: every node of the program, operands first.
    """
    uses = Counter(o.node.index for node in order for o in node.operands)
    uses.update(node.index for node in outputs)
    terms: dict[int, tuple[Node, ...]] = {}
    absorbed: set[int] = set()
    for node in reversed(order):
        if node.index in absorbed or not _is_addition(node):
            continue
        inner: set[int] = set()
        found = _terms(node, uses, inner)
        if found is not None:
            terms[node.index] = tuple(found)
            absorbed |= inner
    return Totals(terms, frozenset(absorbed))


def _is_addition(node: Node) -> bool:
    return node.op is Op.MAP and node.attributes == "add" and not node.rank and node.dtype.is_float


def _terms(node: Node, uses: Mapping[int, int], inner: set[int]) -> list[Node] | None:
    """Arrays that add up to the node, noting the nodes in between; None if others do."""
    terms: list[Node] = []
    pending: list[Operand] = list(reversed(node.operands))
    while pending:
        part = pending.pop().node
        if uses[part.index] != 1:
            return None
        inner.add(part.index)
        if _is_addition(part) or (part.op is Op.MAP and str(part.attributes).startswith("cast:")):
            pending.extend(reversed(part.operands))
        elif part.op is Op.REDUCE and part.attributes[0] == "sum" and not part.rank:
            terms.append(part.operands[0].node)
        else:
            return None
    return terms if all(t.dtype.is_float for t in terms) else None


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

"""Rule on MIN and MAX: where there may be NaN, they follow IEEE 754's total order.

Torch's extremes give NaN as soon as one element is; SQL's order has NaN with a clear sign
above everything and NaN with a set sign below. The two agree where there is no NaN, which
is what :func:`compared` lists; the exact program compares integer keys instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from ..tensor.graph import Node, Op, scalar_value, topological
from ..tensor.labelled import Tensor
from .engine import Pass, Rewriter, View
from .patterns import match_map

_OF_TWO = {"maximum": "greatest", "minimum": "least"}


def extreme_over_axes(rewriter: Rewriter, view: View) -> Tensor | None:
    """``max(x)`` → the value whose key is ``max(key(x))``."""
    function = view.attributes[0]
    if function not in ("max", "min") or not view.node.dtype.is_float:
        return None
    if not rewriter.exact:
        return None
    keys = rewriter.builder.reduce_all(function, _keys(rewriter, view.operands[0]), view.reduced)
    return rewriter.builder.map("from_total_order", keys)


def _keys(rewriter: Rewriter, value: Tensor) -> Tensor:
    """Integers in the order of the values; hidden rows come last, after any NaN."""
    b = rewriter.builder
    masked = match_map(rewriter, value, "where")
    if masked is not None:
        mask, inner, otherwise = masked
        identity = scalar_value(otherwise.node)
        if isinstance(identity, float) and math.isinf(identity):
            keys = b.map("total_order", inner)
            limits = np.iinfo(keys.dtype.numpy)
            last = limits.max if identity > 0 else limits.min
            return b.map("where", mask, keys, b.constant(last, keys.dtype))
    return b.map("total_order", value)


def extreme_of_two(rewriter: Rewriter, view: View) -> Tensor | None:
    """``maximum(x, y)`` → ``greatest(x, y)``."""
    name = _OF_TWO.get(str(view.attributes))
    if name is None or not rewriter.exact or not view.node.dtype.is_float:
        return None
    return rewriter.builder.map(name, *view.operands)


def compared(outputs: Iterable[Node]) -> tuple[Node, ...]:
    """The values that the program compares as if there were no NaN among them."""
    found: dict[Node, None] = {}
    for node in topological(outputs):
        extreme = node.op is Op.REDUCE and node.attributes[0] in ("max", "min")
        if node.dtype.is_float and (extreme or node.attributes in _OF_TWO):
            found.update(dict.fromkeys(o.node for o in node.operands))
    return tuple(found)


EXTREMES = Pass("extremes", {Op.REDUCE: (extreme_over_axes,), Op.MAP: (extreme_of_two,)})

"""Rule on dropout: a mask over whole axes is generated at once, four elements a block."""

from __future__ import annotations

from ..dtypes import DType
from ..tensor.graph import Op, Operand
from ..tensor.labelled import Tensor
from .engine import Pass, Rewriter, View


def dense_mask(rewriter: Rewriter, view: View) -> Tensor | None:
    """``dropout_keep(p, seed, step, site, i, j)`` over coordinates → DROPOUT · 1/(1-p)."""
    if not str(view.attributes).startswith("dropout_keep"):
        return None
    scalars, indices = view.operands[:4], view.operands[4:]
    axes = tuple(t.axes[0] for t in indices if t.node.op is Op.IOTA)
    dense = len(axes) == len(indices) == len(set(axes))
    if not dense or any(t.axes for t in scalars):
        return None
    b = rewriter.builder
    shape = tuple(a.size for a in axes)
    operands = [Operand(t.node, ()) for t in scalars]
    kept = Tensor(rewriter.graph.intern(Op.DROPOUT, operands, shape, DType.BOOL), axes)
    p = b.cast(scalars[0], DType.FLOAT64)
    one = b.constant(1.0, p.dtype)
    scale = b.map("divide", one, b.map("subtract", one, p))
    return b.map("multiply", b.cast(kept, view.node.dtype), b.cast(scale, view.node.dtype))


DROPOUT = Pass("dropout", {Op.MAP: (dense_mask,)})

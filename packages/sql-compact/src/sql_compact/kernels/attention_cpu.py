"""Fused attention on the CPU: blocks of rows that stay in cache, no stored scores.

A causal block of queries meets only the keys up to its last row, so about a third of the
work of the full square is never done. Everything inside a block happens in place.

Scores are kept in units of log 2, the factor being part of their scale: exponentials of base two
take the same time for every number, while those of base e take ten times as long at the -inf of
hidden entries (torch's call of MKL, measured).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

#: Queries of a block; and scores of a block over several heads, sized for the second-level cache.
_ROWS = 64
_BLOCK_ELEMENTS = 1 << 18
_LOG2_E = 1 / math.log(2)


def _blocks(q: torch.Tensor, causal: bool) -> Iterator[tuple[slice, slice, int]]:
    """Groups of heads, rows of queries, and how many keys the rows see, most keys first."""
    heads, length = q.shape[0], q.shape[1]
    group = max(1, _BLOCK_ELEMENTS // (min(_ROWS, length) * length))
    for first in range(0, heads, group):
        for start in reversed(range(0, length, _ROWS)):
            stop = min(start + _ROWS, length)
            keys = stop if causal else length
            yield slice(first, min(first + group, heads)), slice(start, stop), keys


class _Scores:
    """Scaled scores, in units of log 2, of blocks of queries against the keys they see.

    Args:
        like: queries of (batch * head, position, width).
        scale: factor of products of queries and keys.
    """

    def __init__(self, like: torch.Tensor, scale: float, causal: bool) -> None:
        self._scale = scale * _LOG2_E
        self._hidden: torch.Tensor | None = None
        if causal:
            # Added by the product itself. A block of `rows` queries and `keys` keys reads the
            # last `rows` rows and `keys` columns: nothing is hidden but behind its diagonal.
            rows = min(_ROWS, like.shape[1])
            hidden = torch.full((rows, rows), -math.inf, dtype=like.dtype).triu_(1)
            self._hidden = torch.nn.functional.pad(hidden, (like.shape[1] - rows, 0))

    def __call__(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        if self._hidden is None:
            return torch.bmm(q, k.transpose(1, 2)).mul_(self._scale)
        hidden = self._hidden[-q.shape[1] :, -k.shape[1] :]
        return torch.baddbmm(hidden, q, k.transpose(1, 2), alpha=self._scale)


def _flat(x: torch.Tensor) -> torch.Tensor:
    """(batch, head, position, width) as contiguous (batch * head, position, width)."""
    return x.reshape(-1, *x.shape[2:]).contiguous()


def _flat_mask(kept: torch.Tensor | None) -> torch.Tensor | None:
    """A mask as (batch * head, position, position) bytes, which multiply faster than bools."""
    return None if kept is None else kept.view(torch.uint8).reshape(-1, *kept.shape[2:])


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kept: torch.Tensor | None,
    keep_scale: torch.Tensor | float,
    scale: float,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and logarithm of the sum of exponentials.

    Args:
        q, k, v: (batch, head, position, width), float32 or float64.
        kept: bool (batch, head, position, position), which probabilities dropout keeps.
        keep_scale: what kept probabilities are multiplied by.

    Returns:
        (batch, head, position, width), a view of a (batch, position, head, width) buffer;
        and (batch, head, position).
    """
    batch, heads, length, width = q.shape
    fq, fk, fv = _flat(q), _flat(k), _flat(v)
    mask = _flat_mask(kept)
    out = torch.empty(batch * heads, length, width, dtype=q.dtype)
    lse = torch.empty(batch * heads, length, dtype=q.dtype)
    block_scores = _Scores(fq, scale, causal)
    for group, rows, keys in _blocks(fq, causal):
        scores = block_scores(fq[group, rows], fk[group, :keys])
        top = scores.amax(dim=-1, keepdim=True)
        scores.sub_(top).exp2_()
        total = scores.sum(dim=-1, keepdim=True)
        lse[group, rows] = total.log2().add_(top).div_(_LOG2_E).squeeze(-1)
        if mask is not None:
            scores.mul_(mask[group, rows, :keys])
            total = total / keep_scale
        out[group, rows] = torch.bmm(scores, fv[group, :keys]).div_(total)
    y = out.view(batch, heads, length, width).transpose(1, 2).contiguous().transpose(1, 2)
    return y, lse.view(batch, heads, length)


def backward(
    dy: torch.Tensor,
    y: torch.Tensor,
    lse: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kept: torch.Tensor | None,
    keep_scale: torch.Tensor | float,
    scale: float,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cotangents of q, k and v, each shaped like them; see :func:`forward`.

    With P the probabilities and M the dropout factor: dV = (P M)ᵀ dY,
    dS = P (M (dY Vᵀ) - rowsum(dY Y)), dQ = scale dS K, dK = scale dSᵀ Q
    (Dao, 2023, "FlashAttention-2", section 3.1.2).
    """
    results = _flat_backward(dy, y, lse, q, k, v, kept, keep_scale, scale, causal)
    return tuple(x.view(q.shape) for x in results)  # type: ignore[return-value]


def projection_backward(
    dy: torch.Tensor,
    y: torch.Tensor,
    lse: torch.Tensor,
    qkv: torch.Tensor,
    kept: torch.Tensor | None,
    keep_scale: torch.Tensor | float,
    scale: float,
    causal: bool,
) -> torch.Tensor:
    """Cotangent of queries, keys and values in one array, written once; see :func:`backward`.

    Args:
        dy, y: (batch, position, head, width).
        qkv: (batch, position, 3, head, width), any strides.

    Returns:
        Contiguous (batch, position, 3, head, width).
    """
    q, k, v = (qkv[:, :, part].transpose(1, 2) for part in range(3))
    results = _flat_backward(
        dy.transpose(1, 2), y.transpose(1, 2), lse, q, k, v, kept, keep_scale, scale, causal
    )
    out = torch.empty(qkv.shape, dtype=qkv.dtype)
    for part, result in enumerate(results):
        out[:, :, part] = result.view(q.shape).transpose(1, 2)
    return out


def _flat_backward(
    dy: torch.Tensor,
    y: torch.Tensor,
    lse: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kept: torch.Tensor | None,
    keep_scale: torch.Tensor | float,
    scale: float,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cotangents of q, k and v as contiguous (batch * head, position, width)."""
    length = q.shape[2]
    fdy, fq, fk, fv = _flat(dy), _flat(q), _flat(k), _flat(v)
    mask = _flat_mask(kept)
    delta = (dy * y).sum(dim=-1).reshape(-1, length, 1)
    log2_total = lse.reshape(-1, length, 1) * _LOG2_E
    dq, dk, dv = (torch.empty_like(x) for x in (fq, fk, fv))
    block_scores = _Scores(fq, scale, causal)
    for group, rows, keys in _blocks(fq, causal):
        block_q, block_k, block_v = fq[group, rows], fk[group, :keys], fv[group, :keys]
        p = block_scores(block_q, block_k).sub_(log2_total[group, rows]).exp2_()
        block_dy = fdy[group, rows]
        # The last queries see every key: what their products give is what the others add to.
        beta = int(rows.stop < length)
        dp = torch.bmm(block_dy, block_v.transpose(1, 2))
        if mask is None:
            dv[group, :keys].baddbmm_(p.transpose(1, 2), block_dy, beta=beta)
        else:
            factor = mask[group, rows, :keys].to(p.dtype).mul_(keep_scale)
            dp.mul_(factor)
            dv[group, :keys].baddbmm_(factor.mul_(p).transpose(1, 2), block_dy, beta=beta)
        ds = dp.sub_(delta[group, rows]).mul_(p).mul_(scale)
        dq[group, rows] = torch.bmm(ds, block_k)
        dk[group, :keys].baddbmm_(ds.transpose(1, 2), block_q, beta=beta)
    return dq, dk, dv

"""Attention with explicit dropout bits in plain torch: any device, quadratic memory.

Arithmetic runs in float32, or in float64 for float64 inputs.
"""

from __future__ import annotations

import torch

from ..functions.dropout import dropout_mask
from .keep_bits import unpack


def _compute(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _scores(q: torch.Tensor, k: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)) * scale
    if causal:
        length = q.shape[2]
        hidden = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return scores


def _multiplier(
    scores: torch.Tensor,
    p: torch.Tensor | None,
    seed: torch.Tensor | None,
    step: torch.Tensor | None,
    site: int,
    bits: torch.Tensor | None,
) -> torch.Tensor | None:
    """keep(b, h, i, j): 0 or 1 / (1 - p), or None without dropout."""
    if p is None or seed is None or step is None:
        return None
    if bits is None:
        keep = dropout_mask(p, seed, step, site, scores.shape, scores.device)
    else:
        keep = unpack(bits, scores.shape[2])
    return keep.to(scores.dtype) * (1.0 / (1.0 - p.to(torch.float64))).to(scores.dtype)


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    p: torch.Tensor | None,
    seed: torch.Tensor | None,
    step: torch.Tensor | None,
    site: int,
    scale: float,
    causal: bool,
    bits: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output (B, H, T, D) and logsumexp (B, H, T) in the compute dtype."""
    q, k, v = _compute(q), _compute(k), _compute(v)
    scores = _scores(q, k, scale, causal)
    lse = torch.logsumexp(scores, dim=-1)
    probability = torch.exp(scores - lse.unsqueeze(-1))
    multiplier = _multiplier(scores, p, seed, step, site, bits)
    if multiplier is not None:
        probability = probability * multiplier
    return torch.matmul(probability, v), lse


def backward(
    dy: torch.Tensor,
    y: torch.Tensor,
    lse: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    p: torch.Tensor | None,
    seed: torch.Tensor | None,
    step: torch.Tensor | None,
    site: int,
    scale: float,
    causal: bool,
    bits: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cotangents of q, k and v, each (B, H, T, D) in the compute dtype.

    With P the probabilities and M the dropout multiplier: dV = (P M)^T dY, dP = M (dY V^T),
    dS = P (dP - delta) with delta = rowsum(dY Y), dQ = scale dS K, dK = scale dS^T Q.
    """
    q, k, v, dy, y = _compute(q), _compute(k), _compute(v), _compute(dy), _compute(y)
    scores = _scores(q, k, scale, causal)
    probability = torch.exp(scores - lse.to(scores.dtype).unsqueeze(-1))
    multiplier = _multiplier(scores, p, seed, step, site, bits)
    kept = probability if multiplier is None else probability * multiplier
    dv = torch.matmul(kept.transpose(-1, -2), dy)
    dp = torch.matmul(dy, v.transpose(-1, -2))
    if multiplier is not None:
        dp = dp * multiplier
    delta = (dy * y).sum(dim=-1, keepdim=True)
    ds = probability * (dp - delta) * scale
    return torch.matmul(ds, k), torch.matmul(ds.transpose(-1, -2), q), dv

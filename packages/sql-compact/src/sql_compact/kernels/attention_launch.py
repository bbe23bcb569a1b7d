"""Launches of the Triton attention kernels on tensors of the (B, H, T, D) logical shape.

This module imports triton; import it only where kernels are launched.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from ..errors import ShapeError
from .attention_config import (
    BackwardConfig,
    ForwardConfig,
    backward_config,
    block_d,
    forward_config,
    padded,
)
from .attention_triton import backward_kernel, forward_kernel, row_terms_kernel

TERM_ROWS = 64
INT32_MAX = 2**31 - 1


class Dropout(NamedTuple):
    """0-d tensors p, seed and step on the device of the inputs, the site, and packed keep bits.

    Without bits (see `keep_bits`) the kernels make them from the other four.
    """

    p: torch.Tensor
    seed: torch.Tensor
    step: torch.Tensor
    site: int
    bits: torch.Tensor | None = None


def _keep(dropout: Dropout | None, unused: torch.Tensor) -> tuple[str, tuple[object, ...]]:
    """Where the kernels take keep bits from, and the arguments that say so.

    The kernels never read through an `unused` pointer.
    """
    if dropout is None:
        return "all", (unused, unused, unused, 0, unused, 0)
    p, seed, step, site, bits = dropout
    if bits is None:
        return "drawn", (p, seed, step, site, unused, 0)
    return "stored", (p, seed, step, site, bits, bits.shape[3])


def _unit_stride(x: torch.Tensor) -> torch.Tensor:
    """`x`, copied if the kernels cannot read its rows in one piece."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _strides(x: torch.Tensor) -> tuple[int, int, int]:
    """Strides of batch, head and position. Offsets inside one head are 32-bit in the kernels."""
    batch, head, position, _ = x.stride()
    if x.shape[2] * position > INT32_MAX:
        raise ShapeError(
            f"attention input of shape {tuple(x.shape)} and strides {x.stride()} spans more than "
            "2^31 elements within one head; make it contiguous"
        )
    return batch, head, position


def _limits(config: ForwardConfig | BackwardConfig) -> dict[str, int]:
    return {} if config.max_registers is None else {"maxnreg": config.max_registers}


def launch_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    y: torch.Tensor,
    lse: torch.Tensor,
    dropout: Dropout | None,
    scale: float,
    causal: bool,
    precision: str,
    config: ForwardConfig | None = None,
) -> None:
    """Write the output to `y` (B, H, T, D), any strides, and the logsumexp to `lse` (B, H, T)."""
    q, k, v = _unit_stride(q), _unit_stride(k), _unit_stride(v)
    batch, heads, length, head_dim = q.shape
    config = config or forward_config(q.element_size(), head_dim, length)
    keep, arguments = _keep(dropout, lse)
    grid = (batch * heads, triton.cdiv(length, config.block_m))
    forward_kernel[grid](
        q, k, v, y, lse, *arguments,
        *_strides(q), *_strides(k), *_strides(v), *_strides(y),
        heads, length, scale,
        D=head_dim,
        BLOCK_D=block_d(head_dim),
        BM=config.block_m,
        BN=config.block_n,
        CAUSAL=causal,
        KEEP=keep,
        NEGATIVE=scale < 0,
        SPLIT=config.split,
        CHECK=length % config.block_m != 0 or length % config.block_n != 0,
        PRECISION=precision,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        **_limits(config),
    )  # fmt: skip


def launch_row_terms(
    dy: torch.Tensor, y: torch.Tensor, lse: torch.Tensor, dropout: Dropout | None
) -> torch.Tensor:
    """What the backward kernel needs of each query, float32 (B, H, 2, padded length)."""
    dy, y, lse = _unit_stride(dy), _unit_stride(y), lse.contiguous()
    batch, heads, length, head_dim = y.shape
    keep, arguments = _keep(dropout, lse)
    pitch = padded(length)
    terms = torch.empty((batch, heads, 2, pitch), dtype=torch.float32, device=y.device)
    row_terms_kernel[(batch * heads, pitch // TERM_ROWS)](
        y, dy, lse, arguments[0], terms, pitch, *_strides(y), *_strides(dy), heads, length,
        D=head_dim,
        BLOCK_D=block_d(head_dim),
        BM=TERM_ROWS,
        KEEP=keep,
    )  # fmt: skip
    return terms


def launch_backward_part(
    kinds: str,
    config: BackwardConfig,
    dy: torch.Tensor,
    terms: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dq: torch.Tensor,
    dk: torch.Tensor,
    dv: torch.Tensor,
    dropout: Dropout | None,
    scale: float,
    causal: bool,
    precision: str,
) -> None:
    """Write dK and dV (`kinds` "keys"), dQ ("queries") or all ("both"); rows have unit stride."""
    batch, heads, length, head_dim = q.shape
    keep, arguments = _keep(dropout, terms)
    blocks = triton.cdiv(length, config.outer)
    backward_kernel[(batch * heads, 2 * blocks if kinds == "both" else blocks)](
        q, k, v, dy, terms, terms.shape[3], dq, dk, dv, *arguments,
        *_strides(q), *_strides(k), *_strides(v), *_strides(dy),
        *_strides(dq), *_strides(dk), *_strides(dv), heads, length, scale,
        D=head_dim,
        BLOCK_D=block_d(head_dim),
        OUTER=config.outer,
        INNER=config.inner,
        CAUSAL=causal,
        KEEP=keep,
        WORDS=config.words,
        SPLIT=config.split,
        CHECK=length % config.outer != 0 or length % config.inner != 0,
        PRECISION=precision,
        KINDS=kinds,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        **_limits(config),
    )  # fmt: skip


def launch_backward(
    dy: torch.Tensor,
    y: torch.Tensor,
    lse: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dq: torch.Tensor,
    dk: torch.Tensor,
    dv: torch.Tensor,
    dropout: Dropout | None,
    scale: float,
    causal: bool,
    precision: str,
    config: BackwardConfig | None = None,
) -> None:
    """Write the cotangents of q, k and v to `dq`, `dk` and `dv` (B, H, T, D), any strides."""
    q, k, v, dy = _unit_stride(q), _unit_stride(k), _unit_stride(v), _unit_stride(dy)
    config = config or backward_config(q.element_size(), q.shape[3], q.shape[2])
    terms = launch_row_terms(dy, y, lse, dropout)
    parts = [("both", config)]
    if config.queries is not None:
        parts = [("keys", config), ("queries", config.queries)]
    for kinds, part in parts:
        launch_backward_part(
            kinds, part, dy, terms, q, k, v, dq, dk, dv, dropout, scale, causal, precision
        )  # fmt: skip

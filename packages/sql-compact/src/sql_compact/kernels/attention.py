"""Fused attention with explicit dropout bits, forward and backward, as torch operators.

    S = scale Q K^T (entries j > i hidden if causal),  P = softmax(S),
    Y = (P * keep) V,  lse = logsumexp(S, last axis)

where keep(b, h, i, j) is 0 or 1 / (1 - p) and is the value of `dropout_keep(p, seed, step, site,
b, h, i, j)`. CUDA tensors of bfloat16 or float32 run in Triton kernels that never store S; all
others run in plain torch. The operators can be traced by torch.compile and captured in CUDA graphs:
p, seed and step are read on the device, so a replayed graph sees their new values.
"""

from __future__ import annotations

import torch

from ..errors import DTypeError, ShapeError
from . import attention_reference as reference
from .dropout import check_scalars
from .keep_bits import bits_shape

FUSED_DTYPES = (torch.bfloat16, torch.float32)
PRECISIONS = ("tf32", "tf32x3", "ieee")
MAX_HEAD_DIM = 128


def _check(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    p: torch.Tensor | None,
    seed: torch.Tensor | None,
    step: torch.Tensor | None,
    bits: torch.Tensor | None,
    precision: str,
) -> None:
    if q.dim() != 4 or q.shape != k.shape or q.shape != v.shape:
        raise ShapeError(
            "attention needs q, k and v of one shape (batch, head, position, dim), got "
            f"{tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}"
        )
    if 0 in q.shape:
        raise ShapeError(f"attention needs sizes of at least 1, got {tuple(q.shape)}")
    if q.dtype != k.dtype or q.dtype != v.dtype or not q.dtype.is_floating_point:
        raise DTypeError(
            "attention needs q, k and v of one floating dtype, got "
            f"{q.dtype}, {k.dtype} and {v.dtype}"
        )
    if precision not in PRECISIONS:
        raise DTypeError(f"attention precision must be one of {PRECISIONS}, not {precision!r}")
    if p is None:
        return
    if seed is None or step is None:
        raise ShapeError("attention with dropout needs p, seed and step; seed or step is missing")
    check_scalars(p, seed, step)
    if p.device != q.device:
        raise ShapeError(f"dropout p is on {p.device}, the inputs on {q.device}")
    if bits is None:
        return
    shape = bits_shape(*q.shape[:3])
    if tuple(bits.shape) != shape or bits.dtype != torch.int32 or bits.device != q.device:
        raise ShapeError(
            f"attention bits for inputs {tuple(q.shape)} must be what attention_keep_bits gives, "
            f"int32 {shape} on {q.device}, not {bits.dtype} {tuple(bits.shape)} on {bits.device}"
        )


def _runs_fused(q: torch.Tensor) -> bool:
    return q.is_cuda and q.dtype in FUSED_DTYPES and q.shape[3] <= MAX_HEAD_DIM


def _scale(scale: float | None, head_dim: int) -> float:
    return head_dim**-0.5 if scale is None else scale


def _lse_like(q: torch.Tensor) -> torch.Tensor:
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty(q.shape[:3], dtype=dtype)


def _heads_last(q: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Empty (batch, position, head, dim) buffer for a (batch, head, position, dim) tensor."""
    if q.dim() != 4:
        raise ShapeError(f"attention needs (batch, head, position, dim), not {tuple(q.shape)}")
    batch, heads, length, head_dim = q.shape
    return q.new_empty((batch, length, heads, head_dim), dtype=dtype or q.dtype)


def _forward_into(
    y: torch.Tensor,
    lse: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    p: torch.Tensor | None,
    seed: torch.Tensor | None,
    step: torch.Tensor | None,
    site: int,
    scale: float | None,
    causal: bool,
    precision: str,
    bits: torch.Tensor | None,
) -> None:
    _check(q, k, v, p, seed, step, bits, precision)
    scale = _scale(scale, q.shape[3])
    if not _runs_fused(q):
        result, logsumexp = reference.forward(q, k, v, p, seed, step, site, scale, causal, bits)
        y.copy_(result)
        lse.copy_(logsumexp)
        return
    from .attention_launch import Dropout, launch_forward

    dropout = None
    if p is not None and seed is not None and step is not None:
        dropout = Dropout(p, seed, step, site, bits)
    with torch.cuda.device(q.device):
        launch_forward(q, k, v, y, lse, dropout, scale, causal, precision)


def _backward_into(
    dq: torch.Tensor,
    dk: torch.Tensor,
    dv: torch.Tensor,
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
    scale: float | None,
    causal: bool,
    precision: str,
    bits: torch.Tensor | None,
) -> None:
    _check(q, k, v, p, seed, step, bits, precision)
    if dy.shape != q.shape or y.shape != q.shape or lse.shape != q.shape[:3]:
        raise ShapeError(
            f"attention backward for inputs {tuple(q.shape)} needs dy and y of that shape and lse "
            f"without the last axis, got {tuple(dy.shape)}, {tuple(y.shape)}, {tuple(lse.shape)}"
        )
    scale = _scale(scale, q.shape[3])
    if not _runs_fused(q):
        results = reference.backward(
            dy, y, lse, q, k, v, p, seed, step, site, scale, causal, bits
        )  # fmt: skip
        for target, result in zip((dq, dk, dv), results, strict=True):
            target.copy_(result)
        return
    from .attention_launch import Dropout, launch_backward

    dropout = None
    if p is not None and seed is not None and step is not None:
        dropout = Dropout(p, seed, step, site, bits)
    # The products run in the dtype of the inputs whatever the output's was.
    dy = dy.to(q.dtype)
    with torch.cuda.device(q.device):
        launch_backward(
            dy, y, lse, q, k, v, dq, dk, dv, dropout, scale, causal, precision
        )  # fmt: skip


@torch.library.custom_op("sql_compact::attention", mutates_args=())
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    p: torch.Tensor | None = None,
    seed: torch.Tensor | None = None,
    step: torch.Tensor | None = None,
    site: int = 0,
    scale: float | None = None,
    causal: bool = True,
    precision: str = "tf32",
    out_dtype: torch.dtype | None = None,
    bits: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fused attention.

    Args:
        q, k, v: (B, H, T, D), any strides, one dtype.
        p, seed, step: 0-d tensors on the device of q (floating, int64, int64); p None is no
            dropout. They are never read on the host.
        site: identifier of this place in the model, 0 <= site < 2^31.
        scale: factor of the scores; None is 1 / sqrt(D).
        causal: hide keys j > i.
        precision: products of float32 inputs on CUDA: "tf32", "tf32x3" (three products, close to
            float32) or "ieee" (float32, slow).
        out_dtype: dtype of the output; None is that of q.
        bits: `attention_keep_bits` of the same p, seed, step and site; None makes the bits where
            they are used, which takes less memory and more time.

    Returns:
        Y: (B, H, T, D), a view of a contiguous (B, T, H, D) buffer.
        lse: (B, H, T) natural logarithm, float32 (float64 for float64 inputs).

    Raises:
        ShapeError, DTypeError: inputs that do not fit together.
    """
    y = _heads_last(q, out_dtype).transpose(1, 2)
    lse = _lse_like(q)
    _forward_into(y, lse, q, k, v, p, seed, step, site, scale, causal, precision, bits)
    return y, lse


@attention.register_fake
def _attention_fake(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    p: torch.Tensor | None = None,
    seed: torch.Tensor | None = None,
    step: torch.Tensor | None = None,
    site: int = 0,
    scale: float | None = None,
    causal: bool = True,
    precision: str = "tf32",
    out_dtype: torch.dtype | None = None,
    bits: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    _check(q, k, v, p, seed, step, bits, precision)
    return _heads_last(q, out_dtype).transpose(1, 2), _lse_like(q)


@torch.library.custom_op("sql_compact::attention_backward", mutates_args=())
def attention_backward(
    dy: torch.Tensor,
    y: torch.Tensor,
    lse: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    p: torch.Tensor | None = None,
    seed: torch.Tensor | None = None,
    step: torch.Tensor | None = None,
    site: int = 0,
    scale: float | None = None,
    causal: bool = True,
    precision: str = "tf32",
    out_dtype: torch.dtype | None = None,
    bits: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cotangents of q, k and v of :func:`attention`.

    Args:
        dy: cotangent of the output, (B, H, T, D), any strides.
        y, lse: what the forward call returned. The rest as in the forward call.

    Returns:
        dq, dk, dv: (B, H, T, D), views of contiguous (B, T, H, D) buffers, in `out_dtype` or the
        dtype of q.

    Raises:
        ShapeError, DTypeError: inputs that do not fit together.
    """
    dq, dk, dv = (_heads_last(q, out_dtype).transpose(1, 2) for _ in range(3))
    _backward_into(
        dq, dk, dv, dy, y, lse, q, k, v, p, seed, step, site, scale, causal, precision, bits
    )  # fmt: skip
    return dq, dk, dv


@attention_backward.register_fake
def _attention_backward_fake(
    dy: torch.Tensor,
    y: torch.Tensor,
    lse: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    p: torch.Tensor | None = None,
    seed: torch.Tensor | None = None,
    step: torch.Tensor | None = None,
    site: int = 0,
    scale: float | None = None,
    causal: bool = True,
    precision: str = "tf32",
    out_dtype: torch.dtype | None = None,
    bits: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    _check(q, k, v, p, seed, step, bits, precision)
    dq, dk, dv = (_heads_last(q, out_dtype).transpose(1, 2) for _ in range(3))
    return dq, dk, dv


def _parts(qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(B, H, T, D) views of the three parts of a (B, T, 3, H, D) buffer."""
    if qkv.dim() != 5 or qkv.shape[2] != 3:
        raise ShapeError(
            f"fused qkv must have shape (batch, position, 3, head, dim), not {tuple(qkv.shape)}"
        )
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    return q, k, v


@torch.library.custom_op("sql_compact::attention_qkv", mutates_args=())
def attention_qkv(
    qkv: torch.Tensor,
    p: torch.Tensor | None = None,
    seed: torch.Tensor | None = None,
    step: torch.Tensor | None = None,
    site: int = 0,
    scale: float | None = None,
    causal: bool = True,
    precision: str = "tf32",
    out_dtype: torch.dtype | None = None,
    bits: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`attention` on one (B, T, 3, H, D) projection (part 0 = q, 1 = k, 2 = v).

    Returns:
        Y: contiguous (B, T, H, D), as the next projection reads it.
        lse: (B, H, T).
    """
    q, k, v = _parts(qkv)
    y = _heads_last(q, out_dtype)
    lse = _lse_like(q)
    _forward_into(
        y.transpose(1, 2), lse, q, k, v, p, seed, step, site, scale, causal, precision, bits
    )  # fmt: skip
    return y, lse


@attention_qkv.register_fake
def _attention_qkv_fake(
    qkv: torch.Tensor,
    p: torch.Tensor | None = None,
    seed: torch.Tensor | None = None,
    step: torch.Tensor | None = None,
    site: int = 0,
    scale: float | None = None,
    causal: bool = True,
    precision: str = "tf32",
    out_dtype: torch.dtype | None = None,
    bits: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v = _parts(qkv)
    _check(q, k, v, p, seed, step, bits, precision)
    return _heads_last(q, out_dtype), _lse_like(q)


@torch.library.custom_op("sql_compact::attention_qkv_backward", mutates_args=())
def attention_qkv_backward(
    dy: torch.Tensor,
    y: torch.Tensor,
    lse: torch.Tensor,
    qkv: torch.Tensor,
    p: torch.Tensor | None = None,
    seed: torch.Tensor | None = None,
    step: torch.Tensor | None = None,
    site: int = 0,
    scale: float | None = None,
    causal: bool = True,
    precision: str = "tf32",
    out_dtype: torch.dtype | None = None,
    bits: torch.Tensor | None = None,
) -> torch.Tensor:
    """Cotangent of `qkv` of :func:`attention_qkv`.

    Args:
        dy: (B, T, H, D), any strides. y, lse: what the forward call returned.

    Returns:
        Contiguous (B, T, 3, H, D) in `out_dtype` or the dtype of qkv.
    """
    q, k, v = _parts(qkv)
    dqkv = torch.empty(qkv.shape, dtype=out_dtype or qkv.dtype, device=qkv.device)
    _backward_into(
        *_parts(dqkv), dy.transpose(1, 2), y.transpose(1, 2), lse, q, k, v,
        p, seed, step, site, scale, causal, precision, bits,
    )  # fmt: skip
    return dqkv


@attention_qkv_backward.register_fake
def _attention_qkv_backward_fake(
    dy: torch.Tensor,
    y: torch.Tensor,
    lse: torch.Tensor,
    qkv: torch.Tensor,
    p: torch.Tensor | None = None,
    seed: torch.Tensor | None = None,
    step: torch.Tensor | None = None,
    site: int = 0,
    scale: float | None = None,
    causal: bool = True,
    precision: str = "tf32",
    out_dtype: torch.dtype | None = None,
    bits: torch.Tensor | None = None,
) -> torch.Tensor:
    q, k, v = _parts(qkv)
    _check(q, k, v, p, seed, step, bits, precision)
    return torch.empty(qkv.shape, dtype=out_dtype or qkv.dtype, device=qkv.device)

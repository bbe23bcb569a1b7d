"""Torch functions of the operations that are more than one torch call."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..functions.dropout import dropout_mask
from ..kernels import attention as fused
from ..kernels import attention_cpu
from ..tensor.static import broadcast


def cast(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The value with another element type."""
    return value.to(dtype)


def expand(value: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The value repeated along axes of size 1."""
    return value.expand(shape)


def gather(
    value: torch.Tensor,
    index: torch.Tensor,
    value_axes: tuple[int, ...],
    index_axes: tuple[int, ...],
    rank: int,
) -> torch.Tensor:
    """``value`` read along its axis -1 at ``index``; see Op.GATHER for the axes."""
    at = value_axes.index(-1)
    index = index.long()
    shared = [a for a in value_axes if a in index_axes]
    rest = [a for a in value_axes if a >= 0 and a not in index_axes]
    order = [value_axes.index(a) for a in shared] + [at] + [value_axes.index(a) for a in rest]
    value = value.permute(order)
    if shared:
        grids = []
        for axis in shared:
            shape = [1] * len(index_axes)
            shape[index_axes.index(axis)] = -1
            size = index.shape[index_axes.index(axis)]
            grids.append(torch.arange(size, device=index.device).reshape(shape))
        picked = value[(*grids, index)]
    elif value.dim() == 1:
        picked = value[index]
    else:
        picked = value.index_select(0, index.reshape(-1)).reshape(*index.shape, *value.shape[1:])
    axes = [*index_axes, *rest]
    if axes == list(range(rank)):
        return picked
    return picked.permute([axes.index(a) for a in range(rank)])


def place(value: torch.Tensor, axis: int, position: int, size: int) -> torch.Tensor:
    """Zeros with ``value`` at one position along a new axis of ``size``."""
    before, after = position, size - position - 1
    padding = [0, 0] * (value.dim() - axis) + [before, after]
    return torch.nn.functional.pad(value.unsqueeze(axis), padding)


def stack(
    values: Sequence[torch.Tensor | float], axes: Sequence[tuple[int, ...]], axis: int, like
) -> torch.Tensor:
    """Values side by side along a new axis; scalars are repeated."""
    shape, dtype, device = like
    inner = shape[:axis] + shape[axis + 1 :]
    full = []
    for value, own in zip(values, axes, strict=True):
        if not isinstance(value, torch.Tensor):
            value = torch.full((), value, dtype=dtype, device=device)
        own = tuple(a if a < axis else a - 1 for a in own)
        full.append(broadcast(value, own, len(inner)).expand(inner))
    return torch.stack(full, dim=axis)


def diagonal(value: torch.Tensor, p: int, q: int) -> torch.Tensor:
    """Axis q read at the position of axis p < q, and dropped."""
    return value.diagonal(dim1=p, dim2=q).movedim(-1, p)


def dropout(
    p: torch.Tensor | float,
    seed: torch.Tensor | int,
    step: torch.Tensor | int,
    site: torch.Tensor | int,
    shape: tuple[int, ...],
    device: torch.device,
) -> torch.Tensor:
    """Which elements a dropout site keeps: bool of ``shape``."""
    return dropout_mask(p, seed, step, site, shape, device)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *rest: torch.Tensor | float | int | bool | str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fused attention: output and logarithm of the sum of exponentials.

    ``rest`` is p, seed, step, site where there is dropout; then scale, causal, precision.
    """
    *keep, scale, causal, precision = rest
    if q.device.type == "cpu":
        return attention_cpu.forward(q, k, v, *_kept(q, keep), scale, causal)
    kind = torch.bfloat16 if precision == "bfloat16" else q.dtype
    y, lse = fused.attention(
        q.to(kind), k.to(kind), v.to(kind), *_stream(q, keep), scale, causal, _dot(precision)
    )
    return y.to(q.dtype), lse


def attention_backward(
    dy: torch.Tensor,
    y: torch.Tensor,
    lse: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *rest: torch.Tensor | float | int | bool | str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cotangents of q, k and v; see :func:`attention`."""
    *keep, scale, causal, precision = rest
    if q.device.type == "cpu":
        return attention_cpu.backward(dy, y, lse, q, k, v, *_kept(q, keep), scale, causal)
    kind = torch.bfloat16 if precision == "bfloat16" else q.dtype
    inputs = [x.to(kind) for x in (dy, y)] + [lse] + [x.to(kind) for x in (q, k, v)]
    results = fused.attention_backward(*inputs, *_stream(q, keep), scale, causal, _dot(precision))
    dq, dk, dv = (x.to(q.dtype) for x in results)
    return dq, dk, dv


def _kept(q: torch.Tensor, keep: Sequence) -> tuple[torch.Tensor | None, torch.Tensor | float]:
    """The dropout mask, and what kept values are multiplied by."""
    if not keep:
        return None, 1.0
    batch, heads, length, _ = q.shape
    p = keep[0]
    return dropout(*keep, (batch, heads, length, length), q.device), 1.0 / (1.0 - float(p))


def _stream(q: torch.Tensor, keep: Sequence) -> tuple:
    """p, seed and step as tensors on the device, and the site."""
    if not keep:
        return None, None, None, 0
    p, seed, step, site = keep
    kinds = (torch.float64, torch.int64, torch.int64)
    scalars = [
        torch.as_tensor(value, dtype=kind, device=q.device)
        for value, kind in zip((p, seed, step), kinds, strict=True)
    ]
    return *scalars, int(site)


def _dot(precision: str) -> str:
    """Products of float32 values inside the CUDA kernel."""
    return "tf32" if precision == "tf32" else "ieee"

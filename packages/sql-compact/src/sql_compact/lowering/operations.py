"""Torch functions of the operations that are more than one torch call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import kernels
from ..functions.dropout import dropout_mask
from ..kernels import attention_cpu
from ..tensor.static import broadcast


def cast(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The value with another element type."""
    if value.dtype == torch.bool and value.device.type == "cpu":
        # The same bytes, 0 and 1: torch converts them about eight times as fast.
        value = value.view(torch.uint8)
    return value.to(dtype)


@torch.library.custom_op("sql_compact::realize", mutates_args=())
def _realize(value: torch.Tensor) -> torch.Tensor:
    return value.clone()


@_realize.register_fake
def _realize_fake(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(value)


def realize(value: torch.Tensor) -> torch.Tensor:
    """The value in memory of its own, whatever a compiler would rather do."""
    return _realize(value)


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
    values: Sequence[torch.Tensor | float], axes: Sequence[tuple[int, ...]], axis: int, like: tuple
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
    site: int,
    shape: tuple[int, ...],
    device: torch.device,
) -> torch.Tensor:
    """Which elements a dropout site keeps: bool of ``shape``."""
    if device.type == "cpu":
        return dropout_mask(p, seed, step, site, shape, device)
    return kernels.dropout_mask(*_stream(p, seed, step, device), site, shape)


def _stream(
    p: torch.Tensor | float,
    seed: torch.Tensor | int,
    step: torch.Tensor | int,
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The numbers that name a random stream, as tensors on the device."""
    return (
        torch.as_tensor(p, dtype=torch.float64, device=device),
        torch.as_tensor(seed, dtype=torch.int64, device=device),
        torch.as_tensor(step, dtype=torch.int64, device=device),
    )


def attention_keep(
    p: torch.Tensor | float,
    seed: torch.Tensor | int,
    step: torch.Tensor | int,
    site: int,
    sizes: tuple[int, int, int],
    causal: bool,
    device: torch.device,
) -> tuple[torch.Tensor, ...]:
    """What attention dropout keeps, as the fused operations of the device take it.

    On the CPU the bool mask and the factor of what is kept; on CUDA p, seed, step and the
    packed bits (which make the site superfluous).
    """
    batch, heads, keys = sizes
    if device.type == "cpu":
        shape = (batch, heads, keys, keys)
        mask = dropout_mask(p, seed, step, site, shape, device, causal)
        return mask, torch.as_tensor(1.0 / (1.0 - p), dtype=torch.float64)
    stream = _stream(p, seed, step, device)
    bits = kernels.attention_keep_bits(*stream, site, batch, heads, keys, causal)
    return *stream, bits


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    keep: tuple[torch.Tensor, ...] | None,
    scale: float,
    causal: bool,
    precision: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fused attention: output, and logarithm of the sum of exponentials."""
    if q.device.type == "cpu":
        kept, factor = keep if keep is not None else (None, 1.0)
        return attention_cpu.forward(q, k, v, kept, float(factor), scale, causal)
    return kernels.attention(q, k, v, **_settings(keep, scale, causal, precision))


def attention_backward(
    dy: torch.Tensor,
    y: torch.Tensor,
    lse: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    keep: tuple[torch.Tensor, ...] | None,
    scale: float,
    causal: bool,
    precision: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cotangents of q, k and v; see :func:`attention`."""
    if q.device.type == "cpu":
        kept, factor = keep if keep is not None else (None, 1.0)
        return attention_cpu.backward(dy, y, lse, q, k, v, kept, float(factor), scale, causal)
    settings = _settings(keep, scale, causal, precision)
    return kernels.attention_backward(dy, y, lse, q, k, v, **settings)


def attention_projection_backward(
    dy: torch.Tensor,
    y: torch.Tensor,
    lse: torch.Tensor,
    qkv: torch.Tensor,
    keep: tuple[torch.Tensor, ...] | None,
    scale: float,
    causal: bool,
    precision: str,
) -> torch.Tensor:
    """Cotangent of a (batch, position, 3, head, width) projection."""
    if qkv.device.type == "cpu":
        kept, factor = keep if keep is not None else (None, 1.0)
        return attention_cpu.projection_backward(
            dy, y, lse, qkv, kept, float(factor), scale, causal
        )
    settings = _settings(keep, scale, causal, precision)
    return kernels.attention_qkv_backward(dy, y, lse, qkv, **settings)


def _settings(
    keep: tuple[torch.Tensor, ...] | None, scale: float, causal: bool, precision: str
) -> dict[str, Any]:
    """Keyword arguments of the CUDA operators."""
    settings: dict[str, Any] = {
        "scale": scale,
        "causal": causal,
        # Three products lie as near to float64 as one of float32, and take a quarter of the time.
        "precision": "tf32" if precision == "tf32" else "tf32x3",
    }
    if keep is not None:
        p, seed, step, bits = keep
        settings |= {"p": p, "seed": seed, "step": step, "bits": bits}
    return settings

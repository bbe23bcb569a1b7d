"""Torch functions of the operations that are more than one torch call."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..functions.dropout import dropout_mask
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

"""Keep bits of one dropout site as a torch operator."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..errors import DTypeError, ShapeError
from ..functions import dropout as definition

GROUPS_PER_PROGRAM = 1024


def check_scalars(p: torch.Tensor, seed: torch.Tensor, step: torch.Tensor) -> None:
    """Raise ShapeError or DTypeError unless these are 0-d tensors of one device that fit."""
    if p.numel() != 1 or seed.numel() != 1 or step.numel() != 1:
        raise ShapeError(
            "dropout p, seed and step must be 0-d tensors, got shapes "
            f"{tuple(p.shape)}, {tuple(seed.shape)} and {tuple(step.shape)}"
        )
    if seed.device != p.device or step.device != p.device:
        raise ShapeError(
            "dropout p, seed and step must be on one device, got "
            f"{p.device}, {seed.device} and {step.device}"
        )
    if not p.dtype.is_floating_point or seed.dtype != torch.int64 or step.dtype != torch.int64:
        raise DTypeError(
            "dropout needs a floating p and int64 seed and step, got "
            f"{p.dtype}, {seed.dtype} and {step.dtype}"
        )


def _check(p: torch.Tensor, seed: torch.Tensor, step: torch.Tensor, shape: Sequence[int]) -> None:
    if not 1 <= len(shape) <= definition.MAX_INDICES:
        raise ShapeError(f"a dropout mask has one to four axes, not {tuple(shape)}")
    check_scalars(p, seed, step)


def launch_dropout_mask(
    out: torch.Tensor,
    p: torch.Tensor,
    seed: torch.Tensor,
    step: torch.Tensor,
    site: int,
    groups_per_program: int = GROUPS_PER_PROGRAM,
) -> None:
    """Fill the contiguous bool tensor `out` by the Triton kernel."""
    import triton

    from .philox_triton import dropout_mask_kernel

    *leading, last = out.shape
    groups = math.prod(leading) * triton.cdiv(last, 4)
    dropout_mask_kernel[(triton.cdiv(groups, groups_per_program),)](
        out,
        p,
        seed,
        step,
        site,
        groups,
        LAST=last,
        SIZE1=leading[-1] if leading else 1,
        SIZE2=leading[-2] if len(leading) > 1 else 1,
        INDICES=out.dim(),
        GROUPS=groups_per_program,
        LARGE=out.numel() + 4 * groups_per_program >= 2**31,
    )


@torch.library.custom_op("sql_compact::dropout_mask", mutates_args=())
def dropout_mask(
    p: torch.Tensor, seed: torch.Tensor, step: torch.Tensor, site: int, shape: Sequence[int]
) -> torch.Tensor:
    """True where `dropout_keep(p, seed, step, site, i1, ..., in)` is not 0.

    Args:
        p: 0-d floating tensor in [0, 1); the threshold is floor(p * 2^32), from p in float64.
        seed, step: 0-d int64 tensors on the device of p. None of the three is read on the host.
        site: identifier of the place in the model, 0 <= site < 2^31.
        shape: one to four axis sizes; the indices of an axis are 0 .. size - 1.

    Returns:
        Contiguous bool tensor of `shape` on the device of p.

    Raises:
        ShapeError, DTypeError: arguments that do not fit.
    """
    _check(p, seed, step, shape)
    if not p.is_cuda:
        return definition.dropout_mask(p, seed, step, site, shape, p.device).contiguous()
    out = torch.empty(tuple(shape), dtype=torch.bool, device=p.device)
    if out.numel():
        with torch.cuda.device(p.device):
            launch_dropout_mask(out, p, seed, step, site)
    return out


@dropout_mask.register_fake
def _dropout_mask_fake(
    p: torch.Tensor, seed: torch.Tensor, step: torch.Tensor, site: int, shape: Sequence[int]
) -> torch.Tensor:
    _check(p, seed, step, shape)
    return torch.empty(tuple(shape), dtype=torch.bool, device=p.device)

"""Packed keep bits of attention dropout: made once a step, read by the forward and backward pass.

Bit j % 32 of bits[b, h, j // 32, i] says whether dropout keeps entry (b, h, i, j). Queries and keys
are padded to whole blocks of the kernels, so a head of length T takes padded(T)^2 / 8 bytes.
"""

from __future__ import annotations

import torch

from ..errors import ShapeError
from ..functions.dropout import dropout_mask
from .attention_config import padded
from .dropout import check_scalars

WORD = 32
# Block of one program: queries, words of 32 keys, warps.
TILE = (128, 4, 4)


def bits_shape(batch: int, heads: int, length: int) -> tuple[int, int, int, int]:
    """Shape of the packed bits of a (batch, head, length, length) index space."""
    pitch = padded(length)
    return batch, heads, pitch // WORD, pitch


def pack(mask: torch.Tensor) -> torch.Tensor:
    """Packed int32 bits of a (B, H, T, T) mask; bits of the padding are 0."""
    batch, heads, length, _ = mask.shape
    pitch = padded(length)
    added = pitch - length
    digits = torch.nn.functional.pad(mask, (0, added, 0, added)).to(torch.int64)
    digits = digits.reshape(batch, heads, pitch, pitch // WORD, WORD)
    weights = torch.ones(WORD, dtype=torch.int64, device=mask.device) << torch.arange(
        WORD, device=mask.device
    )
    words = (digits * weights).sum(-1)
    words = torch.where(words >= 2**31, words - 2**32, words)
    return words.to(torch.int32).transpose(2, 3).contiguous()


def unpack(bits: torch.Tensor, length: int) -> torch.Tensor:
    """The (B, H, T, T) mask of packed bits."""
    places = torch.arange(WORD, dtype=torch.int32, device=bits.device)
    digits = (bits[:, :, :, :length].transpose(2, 3).unsqueeze(-1) >> places) & 1
    return digits.flatten(3)[..., :length].bool()


def launch_keep_bits(
    out: torch.Tensor,
    p: torch.Tensor,
    seed: torch.Tensor,
    step: torch.Tensor,
    site: int,
    length: int,
    causal: bool,
    tile: tuple[int, int, int] = TILE,
) -> None:
    """Fill `out` of :func:`bits_shape` by the Triton kernel."""
    from .keep_bits_triton import keep_bits_kernel

    batch, heads, words, pitch = out.shape
    rows, columns, warps = tile
    keep_bits_kernel[(batch * heads, pitch // rows, words // columns)](
        out, p, seed, step, site, heads, length, pitch,
        CAUSAL=causal,
        WORDS=columns,
        ROWS=rows,
        num_warps=warps,
    )  # fmt: skip


def _check(
    p: torch.Tensor, seed: torch.Tensor, step: torch.Tensor, sizes: tuple[int, int, int]
) -> None:
    check_scalars(p, seed, step)
    if min(sizes) < 1:
        raise ShapeError(f"keep bits need a batch, heads and a length of at least 1, got {sizes}")


@torch.library.custom_op("sql_compact::attention_keep_bits", mutates_args=())
def attention_keep_bits(
    p: torch.Tensor,
    seed: torch.Tensor,
    step: torch.Tensor,
    site: int,
    batch: int,
    heads: int,
    length: int,
    causal: bool = True,
) -> torch.Tensor:
    """Packed keep bits for the argument `bits` of the attention operators.

    Entry (b, h, i, j) is kept where `dropout_keep(p, seed, step, site, b, h, i, j)` is not 0.

    Args:
        p, seed, step, site: as in :func:`dropout_mask`.
        batch, heads, length: sizes of the attention; the index space is (B, H, T, T).
        causal: bits of hidden entries (j > i) are never read and may have any value.

    Returns:
        int32 of shape (B, H, T' / 32, T'), T' = T rounded up to a multiple of 128.

    Raises:
        ShapeError, DTypeError: arguments that do not fit.
    """
    _check(p, seed, step, (batch, heads, length))
    if not p.is_cuda:
        shape = (batch, heads, length, length)
        return pack(dropout_mask(p, seed, step, site, shape, p.device))
    out = torch.empty(bits_shape(batch, heads, length), dtype=torch.int32, device=p.device)
    with torch.cuda.device(p.device):
        launch_keep_bits(out, p, seed, step, site, length, causal)
    return out


@attention_keep_bits.register_fake
def _attention_keep_bits_fake(
    p: torch.Tensor,
    seed: torch.Tensor,
    step: torch.Tensor,
    site: int,
    batch: int,
    heads: int,
    length: int,
    causal: bool = True,
) -> torch.Tensor:
    _check(p, seed, step, (batch, heads, length))
    return torch.empty(bits_shape(batch, heads, length), dtype=torch.int32, device=p.device)

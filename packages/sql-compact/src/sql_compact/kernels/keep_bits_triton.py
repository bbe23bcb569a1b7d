"""Packed keep bits of attention: the kernel that writes them and the tiles that read them.

Philox costs about as many instructions as all else in an attention tile, and a training step needs
the bits of a tile three times: in the forward pass, for dK and dV, and for dQ. Writing them once,
one bit each, is cheaper than making them three times.

This module imports triton; import it only where kernels are launched.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .philox_triton import drop_threshold, philox_words, stream_key

WORD = tl.constexpr(32)


@triton.jit(do_not_specialize=["site", "H", "T"])
def keep_bits_kernel(
    bits_ptr, p_ptr, seed_ptr, step_ptr, site, H, T, pitch,
    CAUSAL: tl.constexpr, WORDS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One program: the bits of 32 * WORDS keys and ROWS queries of one head.

    Bit j % 32 of bits[b, h, j // 32, i] is set if dropout keeps entry (b, h, i, j). Programs with
    nothing but entries that a mask hides write 0.
    """
    bh = tl.program_id(0)
    i0 = tl.program_id(1) * ROWS
    w0 = tl.program_id(2) * WORDS
    i = i0 + tl.arange(0, ROWS)
    w = w0 + tl.arange(0, WORDS)
    packed = tl.zeros([WORDS, ROWS], tl.uint32)
    visible = (i0 < T) & (w0 * WORD < T)
    if CAUSAL:
        visible = visible & (w0 * WORD < i0 + ROWS)
    if visible:
        k0, k1 = stream_key(seed_ptr, step_ptr, site, 4)
        threshold = drop_threshold(p_ptr)
        h = (bh % H).to(tl.uint32)
        b = (bh // H).to(tl.uint32)
        for block in tl.static_range(8):
            x0, x1, x2, x3 = philox_words(
                (w * 8 + block).to(tl.uint32)[:, None], i.to(tl.uint32)[None, :], h, b, k0, k1
            )
            packed |= tl.where(x0 >= threshold, 1 << (4 * block), 0).to(tl.uint32)
            packed |= tl.where(x1 >= threshold, 2 << (4 * block), 0).to(tl.uint32)
            packed |= tl.where(x2 >= threshold, 4 << (4 * block), 0).to(tl.uint32)
            packed |= tl.where(x3 >= threshold, 8 << (4 * block), 0).to(tl.uint32)
    base = bits_ptr + bh.to(tl.int64) * (pitch // WORD) * pitch
    tl.store(base + w[:, None] * pitch + i[None, :], packed.to(tl.int32, bitcast=True))


@triton.jit
def stored_by_column(base, pitch, i, n0, M: tl.constexpr, N: tl.constexpr):
    """Keep bits of a [M queries, N keys] tile; n0, its first key, is a multiple of 32."""
    w = tl.arange(0, N // WORD)
    words = tl.load(base + n0 // WORD * pitch + w[None, :] * pitch + i[:, None])
    words = tl.reshape(tl.broadcast_to(words[:, :, None], [M, N // WORD, WORD]), [M, N])
    n = tl.arange(0, N)[None, :]
    # A thread of a tensor-core tile knows n & 24 at compile time: one shift serves many columns.
    return (((words >> (n & 7)) >> (n & 24)) & 1) != 0


@triton.jit
def stored_by_row(base, pitch, i, n0, N: tl.constexpr, M: tl.constexpr):
    """Keep bits of a [N keys, M queries] tile; n0, its first key, is a multiple of 32."""
    w = tl.arange(0, N // WORD)
    words = tl.load(base + n0 // WORD * pitch + w[:, None] * pitch + i[None, :])
    words = tl.reshape(tl.broadcast_to(words[:, None, :], [N // WORD, WORD, M]), [N, M])
    n = tl.arange(0, N)[:, None]
    # A thread of a tensor-core tile knows n & 8 at compile time.
    return (((words >> (n & 23)) >> (n & 8)) & 1) != 0

"""Philox4x32-7 and the dropout keep bits as Triton device functions.

The words of the counter may have different shapes that broadcast against each other (a column of
query indices, a row of key blocks, scalars for head and batch). Each multiplication then runs at
the shape of its own operand, so the first two rounds of an attention tile cost a row and a column.

This module imports triton; import it only where kernels are launched.
"""

from __future__ import annotations

import triton
import triton.language as tl

ROUNDS = tl.constexpr(7)
MULTIPLIER_0 = tl.constexpr(0xD2511F53)
MULTIPLIER_1 = tl.constexpr(0xCD9E8D57)
WEYL_0 = tl.constexpr(0x9E3779B9)
WEYL_1 = tl.constexpr(0xBB67AE85)


@triton.jit
def _high(product):
    return (product >> 32).to(tl.uint32)


@triton.jit
def philox_words(c0, c1, c2, c3, k0, k1):
    """Four uint32 words of Philox4x32-7 for uint32 counter words and key words."""
    for _ in tl.static_range(ROUNDS):
        # A widening product gives both halves in one instruction.
        product0 = c0.to(tl.uint64) * MULTIPLIER_0
        product1 = c2.to(tl.uint64) * MULTIPLIER_1
        c0 = _high(product1) ^ c1 ^ k0
        c1 = product1.to(tl.uint32)
        c2 = _high(product0) ^ c3 ^ k1
        c3 = product0.to(tl.uint32)
        k0 = k0 + WEYL_0
        k1 = k1 + WEYL_1
    return c0, c1, c2, c3


@triton.jit
def stream_key(seed_ptr, step_ptr, site, INDICES: tl.constexpr):
    """Key words of the stream of (seed, step, site), from scalars in device memory."""
    seed = tl.load(seed_ptr).to(tl.uint64)
    step = tl.load(step_ptr).to(tl.uint64)
    k0, k1, _w2, _w3 = philox_words(
        site.to(tl.uint32),
        step.to(tl.uint32),
        _high(step),
        (site * 0 + INDICES).to(tl.uint32),
        seed.to(tl.uint32),
        _high(seed),
    )
    return k0, k1


@triton.jit
def drop_threshold(p_ptr):
    """floor(p * 2^32) as uint32."""
    return (tl.load(p_ptr).to(tl.float64) * 4294967296.0).to(tl.int64).to(tl.uint32)


@triton.jit
def kept_share(p_ptr):
    """1 - p as float32."""
    return (1.0 - tl.load(p_ptr).to(tl.float64)).to(tl.float32)


# An accumulator of the tensor cores gives a thread two neighbouring columns, and two more eight
# columns further on. Storing key j = 16a + 4q + 2s + e in column n = 16a + 8s + 2q + e makes those
# four the words of one Philox block, so no bit ever moves between threads. Sums over keys do not
# depend on the order, so loading the rows of K and V in that order is all it takes.


@triton.jit
def key_of_column(n):
    """Key index held by column n of a [queries, keys] tile."""
    return (n & ~15) | ((n & 6) << 1) | ((n & 8) >> 2) | (n & 1)


@triton.jit
def keep_by_column(i, block0, h, b, k0, k1, threshold, M: tl.constexpr, N: tl.constexpr):
    """Keep bits of a [M queries, N keys] tile whose columns are ordered by `key_of_column`.

    Args:
        i: [M] query indices. block0: first key of the tile // 4. h, b: head and batch index.
    """
    blocks: tl.constexpr = N // 4
    w0, w1, w2, w3 = philox_words(
        (block0 + tl.arange(0, blocks)).to(tl.uint32)[None, :],
        i.to(tl.uint32)[:, None],
        h.to(tl.uint32),
        b.to(tl.uint32),
        k0,
        k1,
    )
    low = tl.join(w0, w1)
    high = tl.join(w2, w3)
    words = tl.reshape(tl.join(low, high), [M, N // 16, 4, 2, 2])
    words = tl.reshape(tl.permute(words, [0, 1, 4, 2, 3]), [M, N])
    return words >= threshold


# In the transposed tile [keys, queries] a thread holds rows g and g + 8 of its warp's 16, and, if
# the tile has more rows than the warps cover, the same rows in its other half. WORDS = 4 puts one
# Philox block in those four rows; WORDS = 2 puts half a block in two rows and computes it twice.


@triton.jit
def key_of_row(n, N: tl.constexpr, WORDS: tl.constexpr):
    """Key index held by row n of a [N keys, queries] tile."""
    lane = n & 7
    half = (n >> 3) & 1
    if WORDS == 4:
        top = n // (N // 2)
        group = (n & (N // 2 - 1)) >> 4
        key = (group * 8 + lane) * 4 + 2 * top + half
    else:
        group = n >> 4
        key = (group * 8 + lane) * 2 + half
    return key


@triton.jit
def keep_by_row(
    n0, i, h, b, k0, k1, threshold, N: tl.constexpr, M: tl.constexpr, WORDS: tl.constexpr
):
    """Keep bits of a [N keys, M queries] tile whose rows are ordered by `key_of_row`.

    Args:
        n0: first key of the tile, a multiple of 4. i: [M] query indices.
    """
    held: tl.constexpr = N // WORDS
    r = tl.arange(0, held)
    w0, w1, w2, w3 = philox_words(
        ((n0 + r * WORDS) // 4).to(tl.uint32)[:, None],
        i.to(tl.uint32)[None, :],
        h.to(tl.uint32),
        b.to(tl.uint32),
        k0,
        k1,
    )
    if WORDS == 4:
        words = tl.join(tl.join(w0, w1), tl.join(w2, w3))  # [group * lane, M, half, top]
        words = tl.reshape(words, [N // 32, 8, M, 2, 2])
        words = tl.reshape(tl.permute(words, [4, 0, 3, 1, 2]), [N, M])
    else:
        first = ((r & 1) == 0)[:, None]
        words = tl.join(tl.where(first, w0, w2), tl.where(first, w1, w3))
        words = tl.reshape(words, [N // 16, 8, M, 2])
        words = tl.reshape(tl.permute(words, [0, 3, 1, 2]), [N, M])
    return words >= threshold


@triton.jit(do_not_specialize=["site"])
def dropout_mask_kernel(
    out_ptr,
    p_ptr,
    seed_ptr,
    step_ptr,
    site,
    groups,
    LAST: tl.constexpr,
    SIZE1: tl.constexpr,
    SIZE2: tl.constexpr,
    INDICES: tl.constexpr,
    GROUPS: tl.constexpr,
    LARGE: tl.constexpr,
):
    """Keep bits for a whole index space: one Philox block per four neighbours of the last axis.

    `groups` counts those blocks; SIZE1 and SIZE2 are the sizes of the second- and third-last axes
    (1 where there is none). LARGE says that indices need 64 bits.
    """
    per_row: tl.constexpr = (LAST + 3) // 4
    k0, k1 = stream_key(seed_ptr, step_ptr, site, INDICES)
    threshold = drop_threshold(p_ptr)
    program = tl.program_id(0).to(tl.int64) if LARGE else tl.program_id(0)
    group = program * GROUPS + tl.arange(0, GROUPS)
    valid = group < groups
    block = group % per_row
    row = group // per_row
    outer = row // SIZE1
    w0, w1, w2, w3 = philox_words(
        block.to(tl.uint32),
        (row % SIZE1).to(tl.uint32),
        (outer % SIZE2).to(tl.uint32),
        (outer // SIZE2).to(tl.uint32),
        k0,
        k1,
    )
    # join(join(w0, w2), join(w1, w3)) lists the words in the order 0, 1, 2, 3.
    words = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), [GROUPS, 4])
    if LAST % 4 == 0:
        offset = group[:, None] * 4 + tl.arange(0, 4)[None, :]
        mask = valid[:, None]
    else:
        column = block[:, None] * 4 + tl.arange(0, 4)[None, :]
        offset = row[:, None] * LAST + column
        mask = valid[:, None] & (column < LAST)
    tl.store(out_ptr + offset, words >= threshold, mask=mask)

"""Triton kernels of fused attention with explicit dropout bits, forward and backward.

The algorithm is FlashAttention-2 (T. Dao, "FlashAttention-2: Faster attention with better
parallelism and work partitioning", ICLR 2024): an online softmax over key blocks, and a backward
pass that recomputes probabilities from the stored logsumexp. Dropout bits are read from words
written before, one bit an entry, or made where they are used; tiles then hold their keys in a
permuted order (see `philox_triton`), and nothing of size queries x keys is stored. There are no
atomics: equal inputs give equal bits.

This module imports triton; import it only where kernels are launched.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .keep_bits_triton import stored_by_column, stored_by_row
from .philox_triton import (
    drop_threshold,
    keep_by_column,
    keep_by_row,
    kept_share,
    key_of_column,
    key_of_row,
    stream_key,
)

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _load_rows(base, rows, stride, T, D: tl.constexpr, BLOCK_D: tl.constexpr, CHECK: tl.constexpr):
    """[rows, BLOCK_D] tile; entries outside the T rows and D columns are 0."""
    columns = tl.arange(0, BLOCK_D)
    pointers = base + rows[:, None] * stride + columns[None, :]
    if CHECK:
        mask = rows[:, None] < T
        if D != BLOCK_D:
            mask = mask & (columns[None, :] < D)
        tile = tl.load(pointers, mask=mask, other=0.0)
    elif D != BLOCK_D:
        tile = tl.load(pointers, mask=columns[None, :] < D, other=0.0)
    else:
        tile = tl.load(pointers)
    return tile


@triton.jit
def _store_rows(
    base, rows, stride, T, tile, D: tl.constexpr, BLOCK_D: tl.constexpr, CHECK: tl.constexpr
):
    columns = tl.arange(0, BLOCK_D)
    pointers = base + rows[:, None] * stride + columns[None, :]
    tile = tile.to(base.dtype.element_ty)
    if CHECK:
        mask = rows[:, None] < T
        if D != BLOCK_D:
            mask = mask & (columns[None, :] < D)
        tl.store(pointers, tile, mask=mask)
    elif D != BLOCK_D:
        tl.store(pointers, tile, mask=columns[None, :] < D)
    else:
        tl.store(pointers, tile)


@triton.jit
def _load_vector(base, rows, T, other, CHECK: tl.constexpr):
    return tl.load(base + rows, mask=rows < T, other=other) if CHECK else tl.load(base + rows)


# Where keep bits come from: nowhere, the generator, or the words that `keep_bits_kernel` wrote.
# `source` is (base of the words of this head, their pitch, h, b, k0, k1, threshold).


@triton.jit
def _keys_of_columns(BN: tl.constexpr, KEEP: tl.constexpr):
    columns = tl.arange(0, BN)
    return key_of_column(columns) if KEEP == "drawn" else columns


@triton.jit
def _keep_by_column(source, i, n0, BM: tl.constexpr, BN: tl.constexpr, KEEP: tl.constexpr):
    base, pitch, h, b, k0, k1, threshold = source
    if KEEP == "stored":
        keep = stored_by_column(base, pitch, i, n0, BM, BN)
    else:
        keep = keep_by_column(i, n0 // 4, h, b, k0, k1, threshold, BM, BN)
    return keep


@triton.jit
def _keys_of_rows(n0, BN: tl.constexpr, KEEP: tl.constexpr, WORDS: tl.constexpr):
    rows = tl.arange(0, BN)
    return n0 + (key_of_row(rows, BN, WORDS) if KEEP == "drawn" else rows)


@triton.jit
def _keep_by_row(
    source, i, m0, n0, BN: tl.constexpr, BM: tl.constexpr, KEEP: tl.constexpr, WORDS: tl.constexpr
):
    base, pitch, h, b, k0, k1, threshold = source
    if KEEP == "stored":
        keep = stored_by_row(base + m0, pitch, i, n0, BN, BM)
    else:
        keep = keep_by_row(n0, m0 + i, h, b, k0, k1, threshold, BN, BM, WORDS)
    return keep


@triton.jit
def _source(p_ptr, seed_ptr, step_ptr, site, bits_ptr, pitch, bh, h, b, KEEP: tl.constexpr):
    """The source of keep bits of one head."""
    base = bits_ptr
    k0 = tl.full((), 0, tl.uint32)
    k1 = tl.full((), 0, tl.uint32)
    threshold = tl.full((), 0, tl.uint32)
    if KEEP == "drawn":
        threshold = drop_threshold(p_ptr)
        k0, k1 = stream_key(seed_ptr, step_ptr, site, 4)
    if KEEP == "stored":
        base = bits_ptr + bh.to(tl.int64) * (pitch // 32) * pitch
    return (base, pitch, h, b, k0, k1, threshold)


@triton.jit
def _kept_scale(p_ptr, KEEP: tl.constexpr):
    # Called after the loops: their first loads must not wait for p.
    return 1.0 if KEEP == "all" else 1.0 / kept_share(p_ptr)


# A product of 32-bit operands takes columns t and t + 4 of its left operand from the thread that
# holds columns 2t and 2t + 1 of an accumulator. Naming them anew moves nothing between threads, and
# the sum does not depend on the order of its terms, if the rows of the right operand follow.


@triton.jit
def _as_left_operand(tile, dtype: tl.constexpr):
    rows: tl.constexpr = tile.shape[0]
    columns: tl.constexpr = tile.shape[1]
    tile = tile.to(dtype)
    if dtype == tl.float32:
        tile = tl.permute(tl.reshape(tile, [rows, columns // 8, 4, 2]), [0, 1, 3, 2])
        tile = tl.reshape(tile, [rows, columns])
    return tile


@triton.jit
def _as_right_operand(tile):
    rows: tl.constexpr = tile.shape[0]
    columns: tl.constexpr = tile.shape[1]
    if tile.dtype == tl.float32:
        tile = tl.permute(tl.reshape(tile, [rows // 8, 4, 2, columns]), [0, 2, 1, 3])
        tile = tl.reshape(tile, [rows, columns])
    return tile


@triton.jit
def _product(left, right, acc, PRECISION: tl.constexpr):
    """acc + left @ right, where `left` was an accumulator."""
    left = _as_left_operand(left, right.dtype)
    return tl.dot(left, _as_right_operand(right), acc, input_precision=PRECISION)


@triton.jit
def _forward_loop(
    acc, total, peak, q, k_base, v_base, sk, sv, start, stop, i, T, scale2, source,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, KEEP: tl.constexpr, NEGATIVE: tl.constexpr, MASKED: tl.constexpr,
    CHECK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Online softmax over the key blocks of [start, stop).

    `peak` is the largest of q k^T so far (of -q k^T if the scale is negative); `scale2` is the
    size of scale / ln 2.
    """
    # Offsets from n0, which the compiler can keep in registers or even know.
    j = _keys_of_columns(BN, KEEP)
    for n0 in range(start, stop, BN):
        k = _load_rows(k_base, n0 + j, sk, T, D, BLOCK_D, CHECK)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if NEGATIVE:
            s = -s
        if MASKED:
            if CAUSAL:
                s = tl.where(j[None, :] <= (i - n0)[:, None], s, float("-inf"))
            else:
                s = tl.where(j[None, :] < T - n0, s, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(s, 1))
        probability = tl.math.exp2(s * scale2 - (new_peak * scale2)[:, None])
        shrink = tl.math.exp2((peak - new_peak) * scale2)
        total = total * shrink + tl.sum(probability, 1)
        if KEEP != "all":
            keep = _keep_by_column(source, i, n0, BM, BN, KEEP)
            probability = tl.where(keep, probability, 0.0)
        v = _load_rows(v_base, n0 + j, sv, T, D, BLOCK_D, CHECK)
        acc = acc * shrink[:, None]
        acc = _product(probability, v, acc, PRECISION)
        peak = new_peak
    return acc, total, peak


@triton.jit(do_not_specialize=["H", "T", "site"])
def forward_kernel(
    q_ptr, k_ptr, v_ptr, y_ptr, lse_ptr, p_ptr, seed_ptr, step_ptr, site, bits_ptr, pitch,
    sqb, sqh, sqt, skb, skh, skt, svb, svh, svt, syb, syh, syt, H, T, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, KEEP: tl.constexpr, NEGATIVE: tl.constexpr, SPLIT: tl.constexpr,
    CHECK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program: BM queries of one head. Grid: (batch, head) x query blocks, longest first."""
    bh = tl.program_id(0)
    m0 = tl.program_id(1)
    if CAUSAL:
        m0 = tl.cdiv(T, BM) - 1 - m0
    m0 = m0 * BM
    b = bh // H
    h = bh % H
    b64 = b.to(tl.int64)
    h64 = h.to(tl.int64)
    i = m0 + tl.arange(0, BM)
    q = _load_rows(q_ptr + b64 * sqb + h64 * sqh, i, sqt, T, D, BLOCK_D, CHECK)
    k_base = k_ptr + b64 * skb + h64 * skh
    v_base = v_ptr + b64 * svb + h64 * svh
    source = _source(
        p_ptr, seed_ptr, step_ptr, site, bits_ptr, pitch, bh, h, b, KEEP
    )  # fmt: skip
    acc = tl.zeros([BM, BLOCK_D], tl.float32)
    total = tl.zeros([BM], tl.float32)
    peak = tl.full([BM], float("-inf"), tl.float32)
    # Not 0: a hidden score is -infinity and must stay so.
    scale2 = tl.maximum(tl.abs(scale) * LOG2E, 1e-30)
    stop = T
    if CAUSAL:
        stop = tl.minimum(T, m0 + BM)
    if SPLIT:
        # Blocks that no mask touches come first and skip the comparisons.
        unmasked = T // BN * BN
        if CAUSAL:
            unmasked = m0 // BN * BN
        acc, total, peak = _forward_loop(
            acc, total, peak, q, k_base, v_base, skt, svt, 0, unmasked, i, T, scale2, source,
            D, BLOCK_D, BM, BN, CAUSAL, KEEP, NEGATIVE, False, False, PRECISION,
        )  # fmt: skip
        if CAUSAL or CHECK:
            acc, total, peak = _forward_loop(
                acc, total, peak, q, k_base, v_base, skt, svt, unmasked, stop, i, T, scale2, source,
                D, BLOCK_D, BM, BN, CAUSAL, KEEP, NEGATIVE, True, CHECK, PRECISION,
            )  # fmt: skip
    else:
        acc, total, peak = _forward_loop(
            acc, total, peak, q, k_base, v_base, skt, svt, 0, stop, i, T, scale2, source,
            D, BLOCK_D, BM, BN, CAUSAL, KEEP, NEGATIVE, CAUSAL or CHECK, CHECK, PRECISION,
        )  # fmt: skip
    y = acc * (_kept_scale(p_ptr, KEEP) / total)[:, None]
    _store_rows(y_ptr + b64 * syb + h64 * syh, i, syt, T, y, D, BLOCK_D, CHECK)
    lse = (peak * scale2 + tl.math.log2(total)) * LN2
    tl.store(lse_ptr + bh.to(tl.int64) * T + i, lse, mask=i < T)


@triton.jit(do_not_specialize=["H", "T"])
def row_terms_kernel(
    y_ptr, dy_ptr, lse_ptr, p_ptr, terms_ptr, pitch, syb, syh, syt, sgb, sgh, sgt, H, T,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """What the backward tiles need of each query, float32 (B, H, 2, pitch).

    terms[b, h, 0] is lse / ln 2 and terms[b, h, 1] is (1 - p) rowsum(dY * Y). Rows past the end get
    infinity, which makes their probabilities 0.
    """
    bh = tl.program_id(0)
    i = tl.program_id(1) * BM + tl.arange(0, BM)
    b = (bh // H).to(tl.int64)
    h = (bh % H).to(tl.int64)
    y = _load_rows(y_ptr + b * syb + h * syh, i, syt, T, D, BLOCK_D, True)
    dy = _load_rows(dy_ptr + b * sgb + h * sgh, i, sgt, T, D, BLOCK_D, True)
    delta = tl.sum(y.to(tl.float32) * dy.to(tl.float32), 1)
    if KEEP != "all":
        delta = delta * kept_share(p_ptr)
    lse = tl.load(lse_ptr + bh.to(tl.int64) * T + i, mask=i < T, other=float("inf"))
    terms = terms_ptr + bh.to(tl.int64) * 2 * pitch
    tl.store(terms + i, lse * LOG2E)
    tl.store(terms + pitch + i, delta)


@triton.jit
def _load_row_terms(terms, pitch, i):
    # One load of both: two of them would each be spread over threads that use the same values.
    return tl.split(tl.load(terms + i[:, None] + tl.arange(0, 2)[None, :] * pitch))


@triton.jit
def _key_value_loop(
    dk, dv, k, v, q_base, dy_base, terms, pitch_of_terms, sq, sg, start, stop, n0, j, T, scale2,
    source,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
    CAUSAL: tl.constexpr, KEEP: tl.constexpr, WORDS: tl.constexpr, CHECK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the query blocks of [start, stop) to dK / (scale kept_scale) and dV / kept_scale.

    Tiles are transposed, [keys, queries], so that both products take them as they are.
    """
    i = tl.arange(0, BM)
    for m0 in range(start, stop, BM):
        q = _load_rows(q_base, m0 + i, sq, T, D, BLOCK_D, CHECK)
        lse2, delta = _load_row_terms(terms + m0, pitch_of_terms, i)
        s = tl.dot(k, tl.trans(q), input_precision=PRECISION)
        probability = tl.math.exp2(s * scale2 - lse2[None, :])
        if CAUSAL:
            probability = tl.where((j - m0)[:, None] <= i[None, :], probability, 0.0)
        dy = _load_rows(dy_base, m0 + i, sg, T, D, BLOCK_D, CHECK)
        dp = tl.dot(v, tl.trans(dy), input_precision=PRECISION)
        if KEEP != "all":
            keep = _keep_by_row(source, i, m0, n0, BN, BM, KEEP, WORDS)
            kept = tl.where(keep, probability, 0.0)
        else:
            kept = probability
        dv = _product(kept, dy, dv, PRECISION)
        ds = kept * dp - probability * delta[None, :]
        dk = _product(ds, q, dk, PRECISION)
    return dk, dv


@triton.jit
def _query_loop(
    dq, q, dy, lse2, delta, k_base, v_base, sk, sv, start, stop, i, T, scale2, source,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, KEEP: tl.constexpr, MASKED: tl.constexpr, CHECK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the key blocks of [start, stop) to dQ / (scale kept_scale); `delta` is times 1 - p."""
    # Offsets from n0, which the compiler can keep in registers or even know.
    j = _keys_of_columns(BN, KEEP)
    for n0 in range(start, stop, BN):
        k = _load_rows(k_base, n0 + j, sk, T, D, BLOCK_D, CHECK)
        v = _load_rows(v_base, n0 + j, sv, T, D, BLOCK_D, CHECK)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        probability = tl.math.exp2(s * scale2 - lse2[:, None])
        if MASKED:
            if CAUSAL:
                probability = tl.where(j[None, :] <= (i - n0)[:, None], probability, 0.0)
            else:
                probability = tl.where(j[None, :] < T - n0, probability, 0.0)
        dp = tl.dot(dy, tl.trans(v), input_precision=PRECISION)
        if KEEP != "all":
            keep = _keep_by_column(source, i, n0, BM, BN, KEEP)
            dp = tl.where(keep, dp, 0.0)
        ds = probability * (dp - delta[:, None])
        dq = _product(ds, k, dq, PRECISION)
    return dq


@triton.jit(do_not_specialize=["H", "T", "site"])
def backward_kernel(
    q_ptr, k_ptr, v_ptr, dy_ptr, terms_ptr, pitch_of_terms, dq_ptr, dk_ptr, dv_ptr,
    p_ptr, seed_ptr, step_ptr, site, bits_ptr, pitch,
    sqb, sqh, sqt, skb, skh, skt, svb, svh, svt, sgb, sgh, sgt,
    sdqb, sdqh, sdqt, sdkb, sdkh, sdkt, sdvb, sdvh, sdvt, H, T, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, OUTER: tl.constexpr, INNER: tl.constexpr,
    CAUSAL: tl.constexpr, KEEP: tl.constexpr, WORDS: tl.constexpr, SPLIT: tl.constexpr,
    CHECK: tl.constexpr, PRECISION: tl.constexpr, KINDS: tl.constexpr,
):  # fmt: skip
    """One program: dK and dV of OUTER keys, or dQ of OUTER queries, of one head.

    KINDS is "both", "keys" (dK and dV only) or "queries" (dQ only). Both kinds in one launch let
    small problems fill the device; with a causal mask the longest programs of both start first.
    Grid: (batch, head) x blocks.
    """
    bh = tl.program_id(0)
    slot = tl.program_id(1)
    b = bh // H
    h = bh % H
    b64 = b.to(tl.int64)
    h64 = h.to(tl.int64)
    q_base = q_ptr + b64 * sqb + h64 * sqh
    k_base = k_ptr + b64 * skb + h64 * skh
    v_base = v_ptr + b64 * svb + h64 * svh
    dy_base = dy_ptr + b64 * sgb + h64 * sgh
    terms = terms_ptr + bh.to(tl.int64) * 2 * pitch_of_terms
    source = _source(
        p_ptr, seed_ptr, step_ptr, site, bits_ptr, pitch, bh, h, b, KEEP
    )  # fmt: skip
    scale2 = scale * LOG2E
    if KINDS == "both":
        block = slot // 2
        for_keys = slot % 2 == 0
    else:
        block = slot
        for_keys = KINDS == "keys"
    if for_keys:
        n0 = block * OUTER
        j = _keys_of_rows(n0, OUTER, KEEP, WORDS)
        k = _load_rows(k_base, j, skt, T, D, BLOCK_D, CHECK)
        v = _load_rows(v_base, j, svt, T, D, BLOCK_D, CHECK)
        dk = tl.zeros([OUTER, BLOCK_D], tl.float32)
        dv = tl.zeros([OUTER, BLOCK_D], tl.float32)
        start = 0
        if CAUSAL:
            start = n0 // INNER * INNER
        if CAUSAL and SPLIT:
            # From here on every query of the tile comes after every key of the block.
            unmasked = tl.minimum(tl.cdiv(n0 + OUTER, INNER) * INNER, tl.cdiv(T, INNER) * INNER)
            dk, dv = _key_value_loop(
                dk, dv, k, v, q_base, dy_base, terms, pitch_of_terms, sqt, sgt, start, unmasked,
                n0, j, T, scale2, source, D, BLOCK_D, OUTER, INNER, True, KEEP, WORDS, CHECK,
                PRECISION,
            )  # fmt: skip
            dk, dv = _key_value_loop(
                dk, dv, k, v, q_base, dy_base, terms, pitch_of_terms, sqt, sgt, unmasked, T,
                n0, j, T, scale2, source, D, BLOCK_D, OUTER, INNER, False, KEEP, WORDS, CHECK,
                PRECISION,
            )  # fmt: skip
        else:
            dk, dv = _key_value_loop(
                dk, dv, k, v, q_base, dy_base, terms, pitch_of_terms, sqt, sgt, start, T,
                n0, j, T, scale2, source, D, BLOCK_D, OUTER, INNER, CAUSAL, KEEP, WORDS, CHECK,
                PRECISION,
            )  # fmt: skip
        kept_scale = _kept_scale(p_ptr, KEEP)
        dk = dk * (scale * kept_scale)
        dv = dv * kept_scale
        _store_rows(dk_ptr + b64 * sdkb + h64 * sdkh, j, sdkt, T, dk, D, BLOCK_D, CHECK)
        _store_rows(dv_ptr + b64 * sdvb + h64 * sdvh, j, sdvt, T, dv, D, BLOCK_D, CHECK)
    else:
        if CAUSAL:
            block = tl.cdiv(T, OUTER) - 1 - block
        m0 = block * OUTER
        i = m0 + tl.arange(0, OUTER)
        q = _load_rows(q_base, i, sqt, T, D, BLOCK_D, CHECK)
        dy = _load_rows(dy_base, i, sgt, T, D, BLOCK_D, CHECK)
        lse2, delta = _load_row_terms(terms, pitch_of_terms, i)
        dq = tl.zeros([OUTER, BLOCK_D], tl.float32)
        stop = T
        if CAUSAL:
            stop = tl.minimum(T, m0 + OUTER)
        if SPLIT:
            unmasked = T // INNER * INNER
            if CAUSAL:
                unmasked = m0 // INNER * INNER
            dq = _query_loop(
                dq, q, dy, lse2, delta, k_base, v_base, skt, svt, 0, unmasked, i, T, scale2,
                source, D, BLOCK_D, OUTER, INNER, CAUSAL, KEEP,
                False, False, PRECISION,
            )  # fmt: skip
            if CAUSAL or CHECK:
                dq = _query_loop(
                    dq, q, dy, lse2, delta, k_base, v_base, skt, svt, unmasked, stop, i, T,
                    scale2, source, D, BLOCK_D, OUTER, INNER, CAUSAL, KEEP, True, CHECK, PRECISION,
                )  # fmt: skip
        else:
            dq = _query_loop(
                dq, q, dy, lse2, delta, k_base, v_base, skt, svt, 0, stop, i, T, scale2,
                source, D, BLOCK_D, OUTER, INNER, CAUSAL, KEEP,
                CAUSAL or CHECK, CHECK, PRECISION,
            )  # fmt: skip
        dq = dq * (scale * _kept_scale(p_ptr, KEEP))
        _store_rows(dq_ptr + b64 * sdqb + h64 * sdqh, i, sdqt, T, dq, D, BLOCK_D, CHECK)

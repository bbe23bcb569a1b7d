"""Triton kernels of fused attention with explicit dropout bits, forward and backward.

The algorithm is FlashAttention-2 (T. Dao, "FlashAttention-2: Faster attention with better
parallelism and work partitioning", ICLR 2024): an online softmax over key blocks, and a backward
pass that recomputes probabilities from the stored logsumexp. Dropout bits are recomputed too, so
nothing of size queries x keys is stored. There are no atomics: equal inputs give equal bits.

Tiles hold their keys in a permuted order (see `philox_triton`); results do not depend on it.

This module imports triton; import it only where kernels are launched.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .philox_triton import (
    drop_threshold,
    keep_by_column,
    keep_by_row,
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


@triton.jit
def _forward_loop(
    acc, total, peak, q, k_base, v_base, sk, sv, start, stop, i, T, scale2, h, b, k0, k1, threshold,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, MASKED: tl.constexpr, CHECK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Online softmax over the key blocks of [start, stop); scores are in units of log2."""
    order = key_of_column(tl.arange(0, BN))
    for n0 in range(start, stop, BN):
        j = n0 + order
        k = _load_rows(k_base, j, sk, T, D, BLOCK_D, CHECK)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale2
        if MASKED:
            if CAUSAL:
                s = tl.where(j[None, :] <= i[:, None], s, float("-inf"))
            else:
                s = tl.where(j[None, :] < T, s, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(s, 1))
        probability = tl.math.exp2(s - new_peak[:, None])
        shrink = tl.math.exp2(peak - new_peak)
        total = total * shrink + tl.sum(probability, 1)
        if DROPOUT:
            keep = keep_by_column(i, n0 // 4, h, b, k0, k1, threshold, BM, BN)
            probability = tl.where(keep, probability, 0.0)
        v = _load_rows(v_base, j, sv, T, D, BLOCK_D, CHECK)
        acc = acc * shrink[:, None]
        acc = tl.dot(probability.to(v.dtype), v, acc, input_precision=PRECISION)
        peak = new_peak
    return acc, total, peak


@triton.jit(do_not_specialize=["BH", "H", "T", "site"])
def forward_kernel(
    q_ptr, k_ptr, v_ptr, y_ptr, lse_ptr, p_ptr, seed_ptr, step_ptr, site,
    sqb, sqh, sqt, skb, skh, skt, svb, svh, svt, syb, syh, syt, BH, H, T, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, SPLIT: tl.constexpr, CHECK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One program: BM queries of one head. Grid: query blocks x (batch, head), longest first."""
    pid = tl.program_id(0)
    bh = pid % BH
    m0 = pid // BH
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
    k0 = tl.full((), 0, tl.uint32)
    k1 = tl.full((), 0, tl.uint32)
    threshold = tl.full((), 0, tl.uint32)
    kept_scale = 1.0
    if DROPOUT:
        k0, k1 = stream_key(seed_ptr, step_ptr, site, 4)
        threshold, kept_scale = drop_threshold(p_ptr)
    acc = tl.zeros([BM, BLOCK_D], tl.float32)
    total = tl.zeros([BM], tl.float32)
    peak = tl.full([BM], float("-inf"), tl.float32)
    scale2 = scale * LOG2E
    stop = T
    if CAUSAL:
        stop = tl.minimum(T, m0 + BM)
    if SPLIT:
        # Blocks that no mask touches come first and skip the comparisons.
        unmasked = T // BN * BN
        if CAUSAL:
            unmasked = m0 // BN * BN
        acc, total, peak = _forward_loop(
            acc, total, peak, q, k_base, v_base, skt, svt, 0, unmasked, i, T, scale2, h, b,
            k0, k1, threshold, D, BLOCK_D, BM, BN, CAUSAL, DROPOUT, False, False, PRECISION,
        )  # fmt: skip
        if CAUSAL or CHECK:
            acc, total, peak = _forward_loop(
                acc, total, peak, q, k_base, v_base, skt, svt, unmasked, stop, i, T, scale2, h, b,
                k0, k1, threshold, D, BLOCK_D, BM, BN, CAUSAL, DROPOUT, True, CHECK, PRECISION,
            )  # fmt: skip
    else:
        acc, total, peak = _forward_loop(
            acc, total, peak, q, k_base, v_base, skt, svt, 0, stop, i, T, scale2, h, b,
            k0, k1, threshold, D, BLOCK_D, BM, BN, CAUSAL, DROPOUT, CAUSAL or CHECK, CHECK,
            PRECISION,
        )  # fmt: skip
    y = acc * (kept_scale / total)[:, None]
    _store_rows(y_ptr + b64 * syb + h64 * syh, i, syt, T, y, D, BLOCK_D, CHECK)
    lse = (peak + tl.math.log2(total)) * LN2
    tl.store(lse_ptr + bh.to(tl.int64) * T + i, lse, mask=i < T)


@triton.jit(do_not_specialize=["BH", "H", "T"])
def delta_kernel(
    y_ptr, dy_ptr, delta_ptr, syb, syh, syt, sgb, sgh, sgt, BH, H, T,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """delta = rowsum(dY * Y), float32 (B, H, T)."""
    pid = tl.program_id(0)
    bh = pid % BH
    i = pid // BH * BM + tl.arange(0, BM)
    b = (bh // H).to(tl.int64)
    h = (bh % H).to(tl.int64)
    y = _load_rows(y_ptr + b * syb + h * syh, i, syt, T, D, BLOCK_D, True)
    dy = _load_rows(dy_ptr + b * sgb + h * sgh, i, sgt, T, D, BLOCK_D, True)
    delta = tl.sum(y.to(tl.float32) * dy.to(tl.float32), 1)
    tl.store(delta_ptr + bh.to(tl.int64) * T + i, delta, mask=i < T)


@triton.jit
def _delta(y_base, delta_base, i, sy, T, dy, D: tl.constexpr, BLOCK_D: tl.constexpr,
           FUSED: tl.constexpr, CHECK: tl.constexpr):  # fmt: skip
    """rowsum(dY * Y) of the rows i: computed from Y here, or read where `delta_kernel` left it."""
    if FUSED:
        y = _load_rows(y_base, i, sy, T, D, BLOCK_D, CHECK)
        delta = tl.sum(y.to(tl.float32) * dy.to(tl.float32), 1)
    else:
        delta = _load_vector(delta_base, i, T, 0.0, CHECK)
    return delta


@triton.jit
def _key_value_loop(
    dk, dv, k, v, q_base, y_base, dy_base, lse_base, delta_base, sq, sy, sg, start, stop,
    n0, j, T, scale2, h, b, k0, k1, threshold, kept_scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, WORDS: tl.constexpr, FUSED: tl.constexpr,
    CHECK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the query blocks of [start, stop) to dK / scale and dV / kept_scale.

    Tiles are transposed, [keys, queries], so that both products take them as they are.
    """
    for m0 in range(start, stop, BM):
        i = m0 + tl.arange(0, BM)
        q = _load_rows(q_base, i, sq, T, D, BLOCK_D, CHECK)
        # Rows past the end get probability 0.
        lse2 = _load_vector(lse_base, i, T, float("inf"), CHECK) * LOG2E
        s = tl.dot(k, tl.trans(q), input_precision=PRECISION)
        probability = tl.math.exp2(s * scale2 - lse2[None, :])
        if CAUSAL:
            probability = tl.where(j[:, None] <= i[None, :], probability, 0.0)
        dy = _load_rows(dy_base, i, sg, T, D, BLOCK_D, CHECK)
        dp = tl.dot(v, tl.trans(dy), input_precision=PRECISION)
        delta = _delta(y_base, delta_base, i, sy, T, dy, D, BLOCK_D, FUSED, CHECK)
        if DROPOUT:
            keep = keep_by_row(n0, i, h, b, k0, k1, threshold, BN, BM, WORDS)
            kept = tl.where(keep, probability, 0.0)
            dp = tl.where(keep, dp * kept_scale, 0.0)
        else:
            kept = probability
        dv = tl.dot(kept.to(dy.dtype), dy, dv, input_precision=PRECISION)
        ds = probability * (dp - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit
def _query_loop(
    dq, q, dy, lse2, delta, k_base, v_base, sk, sv, start, stop, i, T, scale2, h, b,
    k0, k1, threshold, kept_scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, MASKED: tl.constexpr, CHECK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the key blocks of [start, stop) to dQ / scale."""
    order = key_of_column(tl.arange(0, BN))
    for n0 in range(start, stop, BN):
        j = n0 + order
        k = _load_rows(k_base, j, sk, T, D, BLOCK_D, CHECK)
        v = _load_rows(v_base, j, sv, T, D, BLOCK_D, CHECK)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        probability = tl.math.exp2(s * scale2 - lse2[:, None])
        if MASKED:
            if CAUSAL:
                probability = tl.where(j[None, :] <= i[:, None], probability, 0.0)
            else:
                probability = tl.where(j[None, :] < T, probability, 0.0)
        dp = tl.dot(dy, tl.trans(v), input_precision=PRECISION)
        if DROPOUT:
            keep = keep_by_column(i, n0 // 4, h, b, k0, k1, threshold, BM, BN)
            dp = tl.where(keep, dp * kept_scale, 0.0)
        ds = probability * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq


@triton.jit(do_not_specialize=["BH", "H", "T", "site"])
def backward_kernel(
    q_ptr, k_ptr, v_ptr, y_ptr, dy_ptr, lse_ptr, delta_ptr, dq_ptr, dk_ptr, dv_ptr,
    p_ptr, seed_ptr, step_ptr, site,
    sqb, sqh, sqt, skb, skh, skt, svb, svh, svt, syb, syh, syt, sgb, sgh, sgt,
    sdqb, sdqh, sdqt, sdkb, sdkh, sdkt, sdvb, sdvh, sdvt, BH, H, T, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, OUTER: tl.constexpr, INNER: tl.constexpr,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, WORDS: tl.constexpr, FUSED: tl.constexpr,
    SPLIT: tl.constexpr, CHECK: tl.constexpr, PRECISION: tl.constexpr, KINDS: tl.constexpr,
):  # fmt: skip
    """One program: dK and dV of OUTER keys, or dQ of OUTER queries, of one head.

    KINDS is "both", "keys" (dK and dV only) or "queries" (dQ only). Both kinds in one launch let
    small problems fill the device; with a causal mask the longest programs of both start first.
    """
    pid = tl.program_id(0)
    bh = pid % BH
    slot = pid // BH
    b = bh // H
    h = bh % H
    b64 = b.to(tl.int64)
    h64 = h.to(tl.int64)
    q_base = q_ptr + b64 * sqb + h64 * sqh
    k_base = k_ptr + b64 * skb + h64 * skh
    v_base = v_ptr + b64 * svb + h64 * svh
    y_base = y_ptr + b64 * syb + h64 * syh
    dy_base = dy_ptr + b64 * sgb + h64 * sgh
    lse_base = lse_ptr + bh.to(tl.int64) * T
    delta_base = delta_ptr + bh.to(tl.int64) * T
    k0 = tl.full((), 0, tl.uint32)
    k1 = tl.full((), 0, tl.uint32)
    threshold = tl.full((), 0, tl.uint32)
    kept_scale = 1.0
    if DROPOUT:
        k0, k1 = stream_key(seed_ptr, step_ptr, site, 4)
        threshold, kept_scale = drop_threshold(p_ptr)
    scale2 = scale * LOG2E
    if KINDS == "both":
        block = slot // 2
        for_keys = slot % 2 == 0
    else:
        block = slot
        for_keys = KINDS == "keys"
    if for_keys:
        n0 = block * OUTER
        j = n0 + key_of_row(tl.arange(0, OUTER), OUTER, WORDS)
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
                dk, dv, k, v, q_base, y_base, dy_base, lse_base, delta_base, sqt, syt, sgt,
                start, unmasked, n0, j, T, scale2, h, b, k0, k1, threshold, kept_scale,
                D, BLOCK_D, OUTER, INNER, True, DROPOUT, WORDS, FUSED, CHECK, PRECISION,
            )  # fmt: skip
            dk, dv = _key_value_loop(
                dk, dv, k, v, q_base, y_base, dy_base, lse_base, delta_base, sqt, syt, sgt,
                unmasked, T, n0, j, T, scale2, h, b, k0, k1, threshold, kept_scale,
                D, BLOCK_D, OUTER, INNER, False, DROPOUT, WORDS, FUSED, CHECK, PRECISION,
            )  # fmt: skip
        else:
            dk, dv = _key_value_loop(
                dk, dv, k, v, q_base, y_base, dy_base, lse_base, delta_base, sqt, syt, sgt,
                start, T, n0, j, T, scale2, h, b, k0, k1, threshold, kept_scale,
                D, BLOCK_D, OUTER, INNER, CAUSAL, DROPOUT, WORDS, FUSED, CHECK, PRECISION,
            )  # fmt: skip
        dk = dk * scale
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
        lse2 = _load_vector(lse_base, i, T, float("inf"), CHECK) * LOG2E
        delta = _delta(y_base, delta_base, i, syt, T, dy, D, BLOCK_D, FUSED, CHECK)
        dq = tl.zeros([OUTER, BLOCK_D], tl.float32)
        stop = T
        if CAUSAL:
            stop = tl.minimum(T, m0 + OUTER)
        if SPLIT:
            unmasked = T // INNER * INNER
            if CAUSAL:
                unmasked = m0 // INNER * INNER
            dq = _query_loop(
                dq, q, dy, lse2, delta, k_base, v_base, skt, svt, 0, unmasked, i, T, scale2, h, b,
                k0, k1, threshold, kept_scale, D, BLOCK_D, OUTER, INNER, CAUSAL, DROPOUT,
                False, False, PRECISION,
            )  # fmt: skip
            if CAUSAL or CHECK:
                dq = _query_loop(
                    dq, q, dy, lse2, delta, k_base, v_base, skt, svt, unmasked, stop, i, T,
                    scale2, h, b, k0, k1, threshold, kept_scale, D, BLOCK_D, OUTER, INNER, CAUSAL,
                    DROPOUT, True, CHECK, PRECISION,
                )  # fmt: skip
        else:
            dq = _query_loop(
                dq, q, dy, lse2, delta, k_base, v_base, skt, svt, 0, stop, i, T, scale2, h, b,
                k0, k1, threshold, kept_scale, D, BLOCK_D, OUTER, INNER, CAUSAL, DROPOUT,
                CAUSAL or CHECK, CHECK, PRECISION,
            )  # fmt: skip
        dq = dq * scale
        _store_rows(dq_ptr + b64 * sdqb + h64 * sdqh, i, sdqt, T, dq, D, BLOCK_D, CHECK)

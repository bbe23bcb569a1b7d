"""Dropout bits from Philox4x32-7, computed with numpy only.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
Seven rounds are the fewest of Philox4x32 that pass BigCrush in that paper. Nothing here is taken
from the SQL program: this is the oracle's own reading of the documented generator, so that a
mistake in either shows as a difference.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sql_oracle.errors import OracleError

ROUNDS = 7
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL_STEPS = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF
# 2^13 blocks of 64-bit words in about ten buffers stay within a core's second-level cache.
CHUNK = 1 << 13

Words = tuple[int, int, int, int]
Key = tuple[int, int]


def philox4x32(counter: Sequence[int], key: Sequence[int], rounds: int = ROUNDS) -> Words:
    """One block of four 32-bit words for one 128-bit counter and one 64-bit key.

    Args:
        counter: four unsigned 32-bit words.
        key: two unsigned 32-bit words.
        rounds: number of rounds; the published test vectors are for 7 and 10.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        high0, low0 = divmod(MULTIPLIERS[0] * c0, WORD + 1)
        high1, low1 = divmod(MULTIPLIERS[1] * c2, WORD + 1)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + WEYL_STEPS[0]) & WORD, (k1 + WEYL_STEPS[1]) & WORD
    return c0, c1, c2, c3


def stream_key(seed: int, step: int, site: int, indices: int) -> Key:
    """Key of one stream: a site of one step, drawn with a given number of indices (1 to 4)."""
    words = philox4x32(
        (site, step & WORD, step >> 32, indices),
        (seed & WORD, seed >> 32),
    )
    return words[0], words[1]


def dropout_words(seed: int, step: int, site: int, shape: Sequence[int]) -> npt.NDArray[np.uint32]:
    """The 32-bit word behind every entry of a dropout mask.

    Entry ``(i1, ..., in)`` is word ``in % 4`` of the block whose counter is
    ``(in // 4, i(n-1), i(n-2), i(n-3))``, absent indices being 0.

    Args:
        seed: non-negative, below 2^64.
        step: non-negative, below 2^64; 0 for the first update.
        site: number of the dropout site, below 2^32.
        shape: one to four sizes, each at most 2^32.

    Returns:
        uint32 array of ``shape``.

    Raises:
        OracleError: an argument is outside its range.
    """
    sizes = tuple(int(size) for size in shape)
    if not 1 <= len(sizes) <= 4 or any(not 0 <= size <= WORD + 1 for size in sizes):
        raise OracleError(f"a dropout mask has one to four dims of at most 2^32, not {sizes}")
    for name, value, bits in (("seed", seed, 64), ("step", step, 64), ("site", site, 32)):
        if not 0 <= value < 1 << bits:
            raise OracleError(f"{name} must be in [0, 2^{bits}), it is {value}")
    key = stream_key(seed, step, site, len(sizes))
    per_row = -(-sizes[-1] // 4)
    outer = sizes[:-1]
    rows = int(np.prod(outer, dtype=np.int64))
    words = np.empty((rows * per_row, 4), dtype=np.uint32)
    buffers = np.empty((8, CHUNK), dtype=np.uint64)
    for start in range(0, rows * per_row, CHUNK):
        out = words[start : start + CHUNK]
        _blocks(start, outer, per_row, key, buffers[:, : len(out)], out)
    return words.reshape(rows, per_row * 4)[:, : sizes[-1]].reshape(sizes)


def _blocks(
    start: int,
    outer: tuple[int, ...],
    per_row: int,
    key: Key,
    buffers: npt.NDArray[np.uint64],
    out: npt.NDArray[np.uint32],
) -> None:
    """Fill ``out`` (blocks, 4) with the consecutive blocks that begin at block ``start``."""
    c0, c1, c2, c3, low0, low1, high0, high1 = buffers
    position = np.arange(start, start + len(out), dtype=np.uint64)
    counters = (c1, c2, c3)
    np.remainder(position, np.uint64(per_row), out=c0)
    position //= np.uint64(per_row)
    for counter, size in zip(counters, reversed(outer), strict=False):
        np.remainder(position, np.uint64(size), out=counter)
        position //= np.uint64(size)
    for counter in counters[len(outer) :]:
        counter.fill(0)

    first, second = (np.uint64(multiplier) for multiplier in MULTIPLIERS)
    shift, mask = np.uint64(32), np.uint64(WORD)
    k0, k1 = key
    for _ in range(ROUNDS):
        np.multiply(c0, first, out=low0)
        np.multiply(c2, second, out=low1)
        np.right_shift(low0, shift, out=high0)
        np.right_shift(low1, shift, out=high1)
        np.bitwise_and(low0, mask, out=low0)
        np.bitwise_and(low1, mask, out=low1)
        np.bitwise_xor(high1, c1, out=c0)
        np.bitwise_xor(c0, np.uint64(k0), out=c0)
        np.bitwise_xor(high0, c3, out=c2)
        np.bitwise_xor(c2, np.uint64(k1), out=c2)
        # The low halves become words 1 and 3; their old buffers are free for the next round.
        c1, low1 = low1, c1
        c3, low0 = low0, c3
        k0, k1 = (k0 + WEYL_STEPS[0]) & WORD, (k1 + WEYL_STEPS[1]) & WORD
    for word, values in enumerate((c0, c1, c2, c3)):
        out[:, word] = values


def dropout_keep(
    rate: float,
    seed: int,
    step: int,
    site: int,
    shape: Sequence[int],
    dtype: npt.DTypeLike = np.float64,
) -> npt.NDArray[np.floating]:
    """A dropout mask of multipliers: 0 with probability ``rate``, otherwise ``1 / (1 - rate)``.

    An entry is dropped when its word is below ``floor(rate * 2^32)``, computed in float64.

    Args:
        rate: probability in [0, 1).
        seed: see :func:`dropout_words`.
        step: see :func:`dropout_words`.
        site: see :func:`dropout_words`.
        shape: see :func:`dropout_words`.
        dtype: element type of the multipliers.

    Raises:
        OracleError: an argument is outside its range.
    """
    if not 0.0 <= rate < 1.0:
        raise OracleError(f"a dropout rate must be in [0, 1), it is {rate}")
    words = dropout_words(seed, step, site, shape)
    kept = words >= np.uint32(int(rate * 2.0**32))
    scale = np.asarray(1.0 / (1.0 - rate), dtype=dtype)
    return np.multiply(kept, scale, dtype=scale.dtype)

"""The dropout mask of a dense array on the CPU, in boxes that stay in cache.

Numpy's unsigned 64-bit loops do the work: torch's int64 ones were measured at about half their
speed on AVX2, and 32-bit products widened to 64 bits at less than half.

Two facts keep the work small. The first two rounds act on words that depend on the leading axes
alone or on the last axis alone, so they are computed on small tables that meet only in round three.
From then on the four words live in two 64-bit lanes, with (high, low) halves ``first = (c0, c1)``
and ``second = (c2, c3)``: a product leaves its high and low word in place, and a left shift by 32
drops the high word that was used up, so nothing has to be masked.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import numpy.typing as npt
import torch

from .philox import MULTIPLIERS, WORD, round_keys

# Measured fastest of 2^12 ... 2^18: 1.5 megabytes of buffers stay in the last-level cache, and
# threads seldom wait for the interpreter between two numpy calls. A small mask is one box: two
# threads with a quarter of this each took longer than one with all of it.
BLOCKS_PER_BOX = 3 << 14
#: Queries that have the same number of keys computed.
CAUSAL_ROWS = 64
SHIFT = np.uint64(32)
MASK = np.uint64(WORD)
M0, M1 = (np.uint64(multiplier) for multiplier in MULTIPLIERS)

Words = npt.NDArray[np.uint64]
Box = tuple[slice, slice, slice]
Shape4 = tuple[int, int, int, int]


def kept_mask(
    threshold: int, key: tuple[int, int], shape: Shape4, causal: bool = False
) -> npt.NDArray[np.bool_]:
    """Whether the word of every entry of a four-dimensional array reaches the threshold.

    Runs on as many threads as torch may use.

    Args:
        threshold: words below it are dropped.
        key: stream key of seed, step, site and number of indices.
        shape: sizes of the axes, leading axes of size 1 where there are fewer than four.
        causal: entries with a last index above the one before it do not matter.

    Returns:
        bool array of ``shape``; some of what does not matter is False without being computed.
    """
    blocks = -(-shape[3] // 4)
    outer, rows = shape[0], shape[1] * shape[2]
    allocate = np.zeros if causal else np.empty
    kept = allocate((outer, rows, 4 * blocks), dtype=np.bool_)
    if kept.size:
        tables = _tables(key, shape, blocks)
        boxes = list(_causal_boxes(shape) if causal else _boxes(outer, rows, blocks))
        threads = min(torch.get_num_threads(), len(boxes))
        if threads > 1:
            shares = [boxes[start::threads] for start in range(threads)]
            list(_pool(threads).map(lambda share: _fill(kept, threshold, tables, share), shares))
        else:
            _fill(kept, threshold, tables, boxes)
    whole = kept.reshape(*shape[:3], 4 * blocks)
    return whole if shape[3] == 4 * blocks else np.ascontiguousarray(whole[..., : shape[3]])


@dataclass(frozen=True, slots=True)
class _Tables:
    """Words after two rounds, split into what depends on rows and on (outer, block).

    Attributes:
        row_c0, block_c0: their exclusive or is word c0. What is named row has shape (1, rows, 1),
            what is named block (outer, 1, blocks).
        row_c2, block_c2: likewise word c2.
        row_c3: word c3 and round three's key, in the high half.
        block_c1: word c1 and round three's key, in the high half.
        lane_keys: keys of rounds four to seven, each word in the high half.
    """

    row_c0: Words
    block_c0: Words
    row_c2: Words
    block_c2: Words
    row_c3: Words
    block_c1: Words
    lane_keys: tuple[tuple[np.uint64, np.uint64], ...]


def _tables(key: tuple[int, int], shape: Shape4, blocks: int) -> _Tables:
    keys = [(np.uint64(k0), np.uint64(k1)) for k0, k1 in round_keys(key)]
    c0 = np.arange(blocks, dtype=np.uint64).reshape(1, 1, blocks)
    c3 = np.arange(shape[0], dtype=np.uint64).reshape(-1, 1, 1)
    c2, c1 = (axis.reshape(1, -1, 1) for axis in np.indices((shape[1], shape[2]), dtype=np.uint64))
    # Round one: c0 and c1 become functions of the row, c2 and c3 of the block and the outer index.
    product0, product1 = c0 * M0, c2 * M1
    row_c0, row_c1 = (product1 >> SHIFT) ^ c1 ^ keys[0][0], product1 & MASK
    block_c2, block_c3 = (product0 >> SHIFT) ^ c3 ^ keys[0][1], product0 & MASK
    # Round two: every word is now a function of the row xor a function of (outer, block).
    product0, product1 = row_c0 * M0, block_c2 * M1
    return _Tables(
        row_c0=row_c1 ^ keys[1][0],
        block_c0=product1 >> SHIFT,
        row_c2=(product0 >> SHIFT) ^ keys[1][1],
        block_c2=np.broadcast_to(block_c3, product1.shape),
        row_c3=((product0 & MASK) ^ keys[2][1]) << SHIFT,
        block_c1=((product1 & MASK) ^ keys[2][0]) << SHIFT,
        lane_keys=tuple((k0 << SHIFT, k1 << SHIFT) for k0, k1 in keys[3:]),
    )


def _boxes(outer: int, rows: int, blocks: int) -> Iterator[Box]:
    """Cut (outer, rows, blocks) into boxes of at most BLOCKS_PER_BOX, the last axis longest."""
    block_step = min(blocks, BLOCKS_PER_BOX)
    row_step = min(rows, max(1, BLOCKS_PER_BOX // block_step))
    outer_step = max(1, BLOCKS_PER_BOX // (block_step * row_step)) if row_step == rows else 1
    return product(
        *(
            [slice(start, min(start + step, size)) for start in range(0, size, step)]
            for size, step in ((outer, outer_step), (rows, row_step), (blocks, block_step))
        )
    )


def _causal_boxes(shape: Shape4) -> Iterator[Box]:
    """Boxes that cover what lies on and below the diagonal of the last two axes."""
    outer, heads, queries, keys = shape
    if queries <= CAUSAL_ROWS:
        # All rows have the same keys computed, so that boxes may hold several heads.
        yield from _boxes(outer, heads * queries, -(-min(queries, keys) // 4))
        return
    for start in range(0, queries, CAUSAL_ROWS):
        stop = min(start + CAUSAL_ROWS, queries)
        blocks = -(-min(stop, keys) // 4)
        for head in range(heads):
            first = head * queries + start
            for box in _boxes(outer, stop - start, blocks):
                inside = slice(first + box[1].start, first + box[1].stop)
                yield box[0], inside, box[2]


def _fill(kept: npt.NDArray[np.bool_], threshold: int, tables: _Tables, boxes: list[Box]) -> None:
    lanes = np.empty((4, BLOCKS_PER_BOX), dtype=np.uint64)
    reached = np.empty((2, 2 * BLOCKS_PER_BOX), dtype=np.bool_)
    least = np.uint32(threshold)
    for outer, rows, blocks in boxes:
        shape = tuple(s.stop - s.start for s in (outer, rows, blocks))
        count = shape[0] * shape[1] * shape[2]
        first, second, next_first, next_second = lanes[:, :count]
        first_box, second_box = next_first.reshape(shape), next_second.reshape(shape)
        by_row = (slice(None), rows)
        by_block = (outer, slice(None), blocks)
        # Round three. `first` comes from c2's product, `second` from c0's.
        np.bitwise_xor(tables.row_c2[by_row], tables.block_c2[by_block], out=first_box)
        np.bitwise_xor(tables.row_c0[by_row], tables.block_c0[by_block], out=second_box)
        next_first *= M1
        next_second *= M0
        first_box ^= tables.block_c1[by_block]
        second_box ^= tables.row_c3[by_row]
        first, second, next_first, next_second = next_first, next_second, first, second
        for first_key, second_key in tables.lane_keys:
            np.right_shift(second, SHIFT, out=next_first)
            np.right_shift(first, SHIFT, out=next_second)
            next_first *= M1
            next_second *= M0
            first <<= SHIFT
            second <<= SHIFT
            first ^= first_key
            second ^= second_key
            next_first ^= first
            next_second ^= second
            first, second, next_first, next_second = next_first, next_second, first, second
        _store(kept[outer, rows, 4 * blocks.start : 4 * blocks.stop], first, second, least, reached)


def _store(
    target: npt.NDArray[np.bool_],
    first: Words,
    second: Words,
    least: np.uint32,
    reached: npt.NDArray[np.bool_],
) -> None:
    """Compare every word; word 0 is the high half of `first`, word 3 the low half of `second`."""
    count = first.size
    pair_first, pair_second = reached[:, : 2 * count]
    np.greater_equal(first.view(np.uint32), least, out=pair_first)
    np.greater_equal(second.view(np.uint32), least, out=pair_second)
    shape = (*target.shape[:2], target.shape[2] // 4)
    pairs = target.view(np.uint16)
    # In memory a little-endian lane is (low, high), so byte pairs are swapped on the way out.
    pairs[..., 0::2] = pair_first.view(np.uint16).byteswap(inplace=True).reshape(shape)
    pairs[..., 1::2] = pair_second.view(np.uint16).byteswap(inplace=True).reshape(shape)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="dropout-mask")

"""Philox4x32, the counter-based generator behind dropout.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
A block is a pure function of a 128-bit counter and a 64-bit key, so the same coordinates give the
same bits in DataFusion, on the CPU and on the GPU. Seven rounds are the fewest that pass BigCrush
in the paper.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

ROUNDS = 7
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL_STEPS = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF

Word = TypeVar("Word", int, torch.Tensor, "int | torch.Tensor")
WordArray = npt.NDArray[np.uint64]


def philox4x32(
    counter: Sequence[Word], key: Sequence[Word], rounds: int = ROUNDS
) -> tuple[Word, Word, Word, Word]:
    """One block of four 32-bit words, on Python integers or on int64 tensors that broadcast.

    Every word is held in the low 32 bits of a 64-bit integer. A product of two words may wrap
    around to a negative int64; its bits are still those of the unsigned product, so masking after
    the arithmetic shift gives the high word on every device.

    Args:
        counter: four unsigned 32-bit words.
        key: two unsigned 32-bit words.
        rounds: number of rounds; the published test vectors are for 7 and 10.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        product0 = c0 * MULTIPLIERS[0]
        product1 = c2 * MULTIPLIERS[1]
        c0 = ((product1 >> 32) & WORD) ^ c1 ^ k0
        c2 = ((product0 >> 32) & WORD) ^ c3 ^ k1
        c1 = product1 & WORD
        c3 = product0 & WORD
        k0 = (k0 + WEYL_STEPS[0]) & WORD
        k1 = (k1 + WEYL_STEPS[1]) & WORD
    return c0, c1, c2, c3


def philox4x32_numpy(
    counter: Sequence[npt.ArrayLike], key: Sequence[npt.ArrayLike], rounds: int = ROUNDS
) -> tuple[WordArray, WordArray, WordArray, WordArray]:
    """One block of four 32-bit words for each entry of broadcasting arrays, as uint64.

    Args:
        counter: four arrays of unsigned 32-bit words.
        key: two arrays of unsigned 32-bit words.
        rounds: number of rounds.
    """
    c0, c1, c2, c3 = (np.asarray(word, dtype=np.uint64) for word in counter)
    k0, k1 = (np.asarray(word, dtype=np.uint64) for word in key)
    shift, mask = np.uint64(32), np.uint64(WORD)
    for _ in range(rounds):
        product0 = c0 * np.uint64(MULTIPLIERS[0])
        product1 = c2 * np.uint64(MULTIPLIERS[1])
        c0, c1, c2, c3 = (
            (product1 >> shift) ^ c1 ^ k0,
            product1 & mask,
            (product0 >> shift) ^ c3 ^ k1,
            product0 & mask,
        )
        k0 = (k0 + np.uint64(WEYL_STEPS[0])) & mask
        k1 = (k1 + np.uint64(WEYL_STEPS[1])) & mask
    return tuple(np.broadcast_arrays(c0, c1, c2, c3))  # type: ignore[return-value]


def round_keys(key: tuple[int, int], rounds: int = ROUNDS) -> tuple[tuple[int, int], ...]:
    """The key of every round: the stream key advanced by one Weyl step a round."""
    return tuple(
        ((key[0] + r * WEYL_STEPS[0]) & WORD, (key[1] + r * WEYL_STEPS[1]) & WORD)
        for r in range(rounds)
    )

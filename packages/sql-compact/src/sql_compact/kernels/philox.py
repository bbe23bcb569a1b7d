"""Philox4x32 in plain torch: the definition that the device kernels reproduce bit for bit.

Source: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as
1, 2, 3", SC 2011 (round function, multipliers and Weyl constants of Philox4x32). Seven rounds are
the fewest that the paper reports to pass BigCrush.

All words are uint32 values held in int64 tensors, because torch has no uint32 arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

ROUNDS = 7
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
WORD_MASK = 0xFFFFFFFF
MAX_INDICES = 4

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _multiply(word: torch.Tensor, multiplier: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low words of the 64-bit product; the split keeps it inside int64."""
    low_half = (word & 0xFFFF) * multiplier
    high_half = (word >> 16) * multiplier
    high = (high_half + (low_half >> 16)) >> 16
    low = (((high_half & 0xFFFF) << 16) + low_half) & WORD_MASK
    return high, low


def philox4x32(
    counter: Sequence[torch.Tensor], key: Sequence[torch.Tensor], rounds: int = ROUNDS
) -> Words:
    """Apply the Philox4x32 bijection.

    Args:
        counter: four int64 tensors of words in [0, 2^32), mutually broadcastable.
        key: two int64 tensors of words in [0, 2^32).
        rounds: number of rounds.

    Returns:
        Four int64 tensors of words; each has the broadcast shape of what it depends on.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        high0, low0 = _multiply(c0, MULTIPLIERS[0])
        high1, low1 = _multiply(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0 = (k0 + WEYL[0]) & WORD_MASK
        k1 = (k1 + WEYL[1]) & WORD_MASK
    return c0, c1, c2, c3


def stream_key(
    seed: torch.Tensor, step: torch.Tensor, site: int, indices: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Key of the stream of one dropout site in one step (two 0-d int64 word tensors)."""
    seed = seed.to(torch.int64)
    step = step.to(torch.int64)
    counter = (
        torch.full_like(step, site & WORD_MASK),
        step & WORD_MASK,
        (step >> 32) & WORD_MASK,
        torch.full_like(step, indices),
    )
    words = philox4x32(counter, (seed & WORD_MASK, (seed >> 32) & WORD_MASK))
    return words[0], words[1]


def keep_mask(
    p: torch.Tensor, seed: torch.Tensor, step: torch.Tensor, site: int, shape: Sequence[int]
) -> torch.Tensor:
    """True where an element survives dropout with probability 1 - p.

    Args:
        p: 0-d floating tensor in [0, 1); the threshold is floor(p * 2^32) in float64.
        seed, step: 0-d int64 tensors, not negative.
        site: 32-bit identifier of the place in the model.
        shape: one to four axis sizes; the indices of an axis are 0 .. size - 1.

    Returns:
        bool tensor of `shape` on the device of `p`.
    """
    device = p.device
    *leading, last = shape
    rank = len(shape)
    blocks = -(-last // 4)
    counter = [torch.arange(blocks, dtype=torch.int64, device=device)]
    for position in range(MAX_INDICES - 1):
        axis = len(leading) - 1 - position
        if axis < 0:
            counter.append(torch.zeros((), dtype=torch.int64, device=device))
        else:
            index = torch.arange(leading[axis], dtype=torch.int64, device=device)
            counter.append(index.reshape([-1] + [1] * (rank - 1 - axis)))
    words = philox4x32(counter, stream_key(seed, step, site, rank))
    bits = torch.stack([w.expand(*leading, blocks) for w in words], dim=-1)
    threshold = torch.floor(p.to(torch.float64) * 2.0**32).to(torch.int64)
    return (bits >= threshold).reshape(*leading, 4 * blocks)[..., :last]

"""Block shapes of the attention kernels: a small table, chosen by measurement on an H200.

A table instead of autotuning keeps the bits of a run independent of timings, and lets a CUDA graph
be captured on the first call.
"""

from __future__ import annotations

from dataclasses import dataclass

MIN_BLOCK_D = 16
ROWS_PER_WARP = 16
PADDING = 128  # A multiple of every block size over queries or keys.


@dataclass(frozen=True, slots=True)
class ForwardConfig:
    """Launch parameters of the forward kernel.

    Attributes:
        block_m: queries of one program.
        block_n: keys of one loop iteration.
        num_warps, num_stages: warps of a program, depth of the software pipeline.
        split: run blocks without masked entries in a loop of their own.
        max_registers: limit of a thread's registers; None leaves the choice to the compiler.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    split: bool
    max_registers: int | None = None


@dataclass(frozen=True, slots=True)
class BackwardConfig:
    """Launch parameters of the backward kernel.

    Attributes:
        outer: keys (for dK, dV) or queries (for dQ) of one program.
        inner: queries or keys of one loop iteration.
        num_warps, num_stages: warps of a program, depth of the software pipeline.
        split: run blocks without masked entries in a loop of their own.
        max_registers: limit of a thread's registers; None leaves the choice to the compiler.
        queries: parameters of a launch of its own for dQ; None computes all in one launch.
    """

    outer: int
    inner: int
    num_warps: int
    num_stages: int
    split: bool
    max_registers: int | None = None
    queries: BackwardConfig | None = None

    @property
    def words(self) -> int:
        """Words of one Philox block that a thread uses in a transposed tile: 2 or 4."""
        return 4 if self.outer >= 2 * ROWS_PER_WARP * self.num_warps else 2


# Sequences up to these lengths are "short" and "medium", others "long". Short ones have few blocks
# in a row, long ones few blocks side by side.
SHORT, MEDIUM = 512, 2048
Key = tuple[int, int, str]

# (bytes per element, head dim at most, length) -> configuration, the fastest on one H200 for head
# dim 64 (bfloat16, and float32 with tf32 products); wider heads take what fits.
_FORWARD: dict[Key, ForwardConfig] = {
    (2, 64, "short"): ForwardConfig(64, 64, 4, 2, True),
    (2, 64, "medium"): ForwardConfig(64, 64, 4, 2, True),
    (2, 64, "long"): ForwardConfig(64, 64, 4, 4, True),
    (2, 128, "short"): ForwardConfig(64, 64, 4, 2, True),
    (2, 128, "medium"): ForwardConfig(128, 64, 8, 2, True),
    (2, 128, "long"): ForwardConfig(128, 64, 8, 2, True),
    (4, 64, "short"): ForwardConfig(64, 32, 4, 2, False),
    (4, 64, "medium"): ForwardConfig(128, 32, 8, 3, True),
    (4, 64, "long"): ForwardConfig(128, 64, 8, 2, True),
    (4, 128, "short"): ForwardConfig(64, 32, 4, 2, True),
    (4, 128, "medium"): ForwardConfig(64, 32, 4, 2, True),
    (4, 128, "long"): ForwardConfig(64, 32, 4, 2, True),
}
_BACKWARD: dict[Key, BackwardConfig] = {
    (2, 64, "short"): BackwardConfig(64, 32, 4, 3, False, 128),
    (2, 64, "medium"): BackwardConfig(64, 32, 4, 3, False, 128),
    (2, 64, "long"): BackwardConfig(64, 64, 4, 3, False),
    (2, 128, "short"): BackwardConfig(64, 32, 4, 2, False),
    (2, 128, "medium"): BackwardConfig(64, 32, 4, 2, True),
    (2, 128, "long"): BackwardConfig(64, 32, 4, 2, True),
    (4, 64, "short"): BackwardConfig(64, 32, 4, 2, False),
    (4, 64, "medium"): BackwardConfig(
        64, 64, 4, 2, True, queries=BackwardConfig(128, 32, 8, 2, True)
    ),
    (4, 64, "long"): BackwardConfig(
        128, 64, 8, 1, True, queries=BackwardConfig(128, 64, 8, 2, True)
    ),
    (4, 128, "short"): BackwardConfig(64, 32, 8, 1, False),
    (4, 128, "medium"): BackwardConfig(64, 32, 8, 1, True),
    (4, 128, "long"): BackwardConfig(64, 32, 8, 1, True),
}


def _key(itemsize: int, head_dim: int, length: int, lean: bool) -> Key:
    kind = "short" if length <= SHORT else "medium" if length <= MEDIUM else "long"
    # Blocks of float32 for long sequences leave no registers for exact products or for Philox.
    if itemsize == 4 and not lean:
        kind = "short"
    return itemsize, 64 if head_dim <= 64 else 128, kind


def block_d(head_dim: int) -> int:
    """Head dim padded to what a tensor-core tile needs: a power of two, at least 16."""
    return max(MIN_BLOCK_D, 1 << (head_dim - 1).bit_length())


def padded(length: int) -> int:
    """Positions of the buffers that the kernels address in whole blocks, without comparisons."""
    return -(-length // PADDING) * PADDING


def forward_config(itemsize: int, head_dim: int, length: int, lean: bool) -> ForwardConfig:
    """Configuration for an element size in bytes, a head dim (<= 128) and a sequence length.

    `lean` says that products are single instructions (bfloat16, tf32) and no bits are drawn.
    """
    return _FORWARD[_key(itemsize, head_dim, length, lean)]


def backward_config(itemsize: int, head_dim: int, length: int, lean: bool) -> BackwardConfig:
    """Configuration for an element size in bytes, a head dim (<= 128) and a sequence length.

    `lean` says that products are single instructions (bfloat16, tf32) and no bits are drawn.
    """
    return _BACKWARD[_key(itemsize, head_dim, length, lean)]

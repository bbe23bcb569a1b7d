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


SHORT = 512  # Sequences up to here have few blocks; longer ones are bound by the inner loop.

# (bytes per element, head dim at most, sequence is short) -> configuration
_FORWARD: dict[tuple[int, int, bool], ForwardConfig] = {
    (2, 64, True): ForwardConfig(64, 64, 4, 2, True),
    (2, 64, False): ForwardConfig(64, 64, 4, 3, True),
    (2, 128, True): ForwardConfig(64, 64, 4, 2, True),
    (2, 128, False): ForwardConfig(128, 64, 8, 2, True),
    (4, 64, True): ForwardConfig(64, 32, 4, 2, True),
    (4, 64, False): ForwardConfig(64, 32, 4, 2, True),
    (4, 128, True): ForwardConfig(64, 32, 4, 2, True),
    (4, 128, False): ForwardConfig(64, 32, 4, 2, True),
}
_BACKWARD: dict[tuple[int, int, bool], BackwardConfig] = {
    (2, 64, True): BackwardConfig(64, 64, 4, 2, False),
    (2, 64, False): BackwardConfig(64, 64, 4, 2, True, None, BackwardConfig(64, 64, 4, 3, True)),
    (2, 128, True): BackwardConfig(64, 32, 4, 2, False),
    (2, 128, False): BackwardConfig(64, 32, 4, 2, True),
    (4, 64, True): BackwardConfig(64, 32, 4, 2, False),
    (4, 64, False): BackwardConfig(64, 32, 4, 2, False, None, BackwardConfig(64, 32, 4, 2, True)),
    (4, 128, True): BackwardConfig(64, 32, 8, 1, False),
    (4, 128, False): BackwardConfig(64, 32, 8, 1, True),
}


def block_d(head_dim: int) -> int:
    """Head dim padded to what a tensor-core tile needs: a power of two, at least 16."""
    return max(MIN_BLOCK_D, 1 << (head_dim - 1).bit_length())


def padded(length: int) -> int:
    """Positions of the buffers that the kernels address in whole blocks, without comparisons."""
    return -(-length // PADDING) * PADDING


def forward_config(itemsize: int, head_dim: int, length: int) -> ForwardConfig:
    """Configuration for an element size in bytes, a head dim (<= 128) and a sequence length."""
    return _FORWARD[itemsize, 64 if head_dim <= 64 else 128, length <= SHORT]


def backward_config(itemsize: int, head_dim: int, length: int) -> BackwardConfig:
    """Configuration for an element size in bytes, a head dim (<= 128) and a sequence length."""
    return _BACKWARD[itemsize, 64 if head_dim <= 64 else 128, length <= SHORT]

"""Block configurations that the attention benchmark tries."""

from __future__ import annotations

from typing import Any

from kernels_only import load

# (block_m, block_n, warps, stages, split[, registers])
FORWARD: dict[tuple[str, str], list[tuple[Any, ...]]] = {
    ("bfloat16", "stored"): [
        (64, 64, 4, 2, True), (64, 64, 4, 3, True), (64, 64, 4, 3, False), (64, 64, 4, 4, True),
        (64, 32, 4, 3, True), (64, 128, 4, 2, True), (128, 64, 8, 2, True), (128, 64, 8, 3, True),
        (128, 64, 8, 3, True, 128), (128, 128, 8, 2, True), (128, 64, 4, 3, True),
        (128, 32, 4, 3, True),
    ],
    ("bfloat16", "drawn"): [
        (64, 64, 4, 2, True), (64, 64, 4, 3, True), (64, 32, 4, 3, True), (128, 64, 8, 3, True),
    ],
    ("float32", "stored"): [
        (64, 32, 4, 2, True), (64, 32, 4, 3, True), (64, 32, 4, 2, False), (64, 64, 4, 2, True),
        (64, 32, 4, 1, True), (128, 32, 8, 2, True), (128, 64, 8, 2, True), (32, 32, 2, 2, True),
        (64, 32, 2, 2, True), (32, 64, 2, 2, True), (16, 64, 1, 2, True), (16, 32, 1, 2, True),
    ],
    ("float32", "drawn"): [(64, 32, 4, 2, True), (32, 32, 2, 2, True), (128, 32, 8, 2, True)],
}  # fmt: skip

# (outer, inner, warps, stages, split[, together[, registers]])
BACKWARD: dict[tuple[str, str], list[tuple[Any, ...]]] = {
    ("bfloat16", "stored"): [
        (64, 64, 4, 2, False), (64, 64, 4, 2, True), (64, 64, 4, 3, False), (64, 64, 4, 3, True),
        (64, 32, 4, 2, False), (64, 32, 4, 3, False), (64, 32, 4, 3, True), (128, 64, 8, 2, False),
        (128, 64, 8, 2, True), (128, 64, 8, 3, True), (128, 32, 8, 3, True),
        (64, 64, 4, 2, True, False), (64, 64, 4, 3, True, False), (128, 64, 8, 3, True, False),
        (64, 64, 8, 2, False), (64, 32, 4, 3, False, True, 168), (64, 32, 4, 3, True, False, 168),
    ],
    ("bfloat16", "drawn"): [
        (64, 64, 4, 2, False), (64, 64, 4, 3, True), (64, 32, 4, 3, False), (128, 64, 8, 2, True),
    ],
    ("float32", "stored"): [
        (64, 32, 4, 2, False), (64, 32, 4, 2, True), (64, 32, 4, 1, False), (64, 32, 4, 3, False),
        (64, 64, 4, 2, False), (64, 64, 8, 2, False), (32, 32, 2, 2, False), (32, 32, 2, 2, True),
        (32, 64, 2, 2, False), (64, 32, 4, 2, True, False), (32, 32, 2, 2, True, False),
        (128, 32, 8, 2, False), (32, 32, 1, 2, False), (64, 32, 4, 2, False, True, 168),
    ],
    ("float32", "drawn"): [(64, 32, 4, 2, False), (32, 32, 2, 2, False)],
}  # fmt: skip

# (queries, words of 32 keys, warps) of the kernel that writes keep bits
KEEP_BITS = [
    (128, 4, 4), (128, 2, 4), (128, 1, 4), (64, 2, 4), (64, 4, 4), (32, 4, 4), (64, 4, 2),
    (128, 4, 8),
]  # fmt: skip


def configs(direction: str, dtype: str, keep: str) -> list[Any]:
    """Configurations of one direction ("forward" or "backward")."""
    config = load("attention_config")
    if direction == "forward":
        return [config.ForwardConfig(*row) for row in FORWARD.get((dtype, keep), [])]
    return [config.BackwardConfig(*row) for row in BACKWARD.get((dtype, keep), [])]

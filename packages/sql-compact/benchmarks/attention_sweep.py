"""Block configurations that the attention benchmark tries."""

from __future__ import annotations

from typing import Any

from kernels_only import load

# Rows: block of the program, block of the loop, warps, stages, split[, registers]. "both" is one
# launch for dK, dV and dQ; "keys" and "queries" are the two launches that do the same.
Key = tuple[str, str, str]
ROWS: dict[Key, list[tuple[Any, ...]]] = {
    ("forward", "bfloat16", "stored"): [
        (64, 64, 4, 2, True), (64, 64, 4, 3, True), (64, 64, 4, 4, True), (64, 64, 4, 3, False),
        (64, 32, 4, 3, True), (64, 32, 4, 4, True), (64, 128, 4, 2, True), (128, 64, 8, 2, True),
        (128, 64, 8, 3, True), (128, 64, 8, 3, True, 128), (128, 128, 8, 2, True),
        (128, 64, 4, 3, True), (128, 32, 4, 3, True), (128, 32, 8, 3, True),
    ],
    ("forward", "bfloat16", "drawn"): [
        (64, 64, 4, 2, True), (64, 64, 4, 3, True), (64, 32, 4, 3, True), (128, 64, 8, 3, True),
    ],
    ("forward", "float32", "stored"): [
        (64, 32, 4, 2, True), (64, 32, 4, 3, True), (64, 32, 4, 4, True), (64, 32, 4, 2, False),
        (64, 32, 4, 1, True), (64, 64, 4, 1, True), (64, 64, 4, 2, True), (128, 32, 8, 2, True),
        (128, 64, 8, 2, True), (128, 32, 8, 3, True), (32, 32, 2, 2, True),
    ],
    ("forward", "float32", "drawn"): [(64, 32, 4, 2, True), (128, 32, 8, 2, True)],
    ("both", "bfloat16", "stored"): [
        (64, 64, 4, 2, False), (64, 64, 4, 3, False), (64, 64, 4, 2, True), (64, 32, 4, 2, False),
        (64, 32, 4, 3, False), (64, 32, 4, 4, False), (64, 32, 4, 3, True), (128, 64, 8, 2, False),
        (128, 32, 8, 3, False), (64, 64, 8, 2, False), (64, 32, 4, 3, False, 128),
    ],
    ("keys", "bfloat16", "stored"): [
        (64, 64, 4, 2, True), (64, 64, 4, 3, True), (64, 64, 4, 2, False), (64, 64, 4, 3, False),
        (64, 32, 4, 3, True), (64, 32, 4, 3, False), (64, 32, 4, 4, True), (128, 64, 8, 2, True),
        (128, 64, 8, 3, True), (128, 64, 8, 3, False), (128, 32, 8, 3, True),
        (128, 32, 4, 3, True), (64, 64, 4, 2, True, 168), (64, 32, 4, 3, True, 128),
    ],
    ("queries", "bfloat16", "stored"): [
        (64, 64, 4, 2, True), (64, 64, 4, 3, True), (64, 64, 4, 2, False), (64, 64, 4, 4, True),
        (64, 32, 4, 3, True), (64, 32, 4, 4, True), (64, 128, 4, 2, True), (128, 64, 8, 2, True),
        (128, 64, 8, 3, True), (128, 32, 8, 3, True), (128, 64, 4, 3, True),
        (64, 64, 4, 3, True, 128), (128, 64, 8, 3, True, 128),
    ],
    ("both", "bfloat16", "drawn"): [(64, 64, 4, 2, False), (64, 32, 4, 3, False)],
    ("keys", "bfloat16", "drawn"): [(64, 64, 4, 3, True), (64, 32, 4, 3, True)],
    ("queries", "bfloat16", "drawn"): [(64, 64, 4, 3, True), (64, 32, 4, 3, True)],
    ("both", "float32", "stored"): [
        (64, 32, 4, 2, False), (64, 32, 4, 1, False), (64, 32, 4, 2, True), (64, 64, 8, 2, False),
        (32, 32, 2, 2, False),
    ],
    ("keys", "float32", "stored"): [
        (64, 32, 4, 2, True), (64, 32, 4, 2, False), (64, 32, 4, 3, True), (64, 32, 4, 1, True),
        (64, 32, 4, 3, False), (64, 64, 4, 2, True), (128, 32, 8, 2, True), (128, 32, 8, 1, True),
        (128, 64, 8, 1, True), (64, 32, 4, 2, True, 168), (32, 32, 2, 2, True),
    ],
    ("queries", "float32", "stored"): [
        (64, 32, 4, 2, True), (64, 32, 4, 2, False), (64, 32, 4, 3, True), (64, 32, 4, 1, True),
        (64, 64, 4, 2, True), (128, 32, 8, 2, True), (128, 64, 8, 2, True),
        (64, 32, 4, 2, True, 128), (32, 32, 2, 2, True),
    ],
    ("both", "float32", "drawn"): [(64, 32, 4, 2, False)],
    ("keys", "float32", "drawn"): [(64, 32, 4, 2, True)],
    ("queries", "float32", "drawn"): [(64, 32, 4, 2, True)],
}  # fmt: skip

# (queries, words of 32 keys, warps) of the kernel that writes keep bits
KEEP_BITS = [
    (128, 4, 4), (128, 2, 4), (128, 1, 4), (64, 2, 4), (64, 4, 4), (32, 4, 4), (64, 1, 2),
    (128, 4, 8),
]  # fmt: skip

# Groups of four neighbours that one program of the mask kernel makes
MASK_GROUPS = (256, 512, 1024, 2048)


def configs(part: str, dtype: str, keep: str) -> list[Any]:
    """Configurations of one part: "forward", "both", "keys" or "queries"."""
    config = load("attention_config")
    kind = config.ForwardConfig if part == "forward" else config.BackwardConfig
    return [kind(*row) for row in ROWS.get((part, dtype, keep), [])]

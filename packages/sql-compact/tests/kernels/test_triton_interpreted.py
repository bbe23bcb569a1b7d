"""The Triton kernels in Triton's interpreter: the same code as on a GPU, on tiny CPU tensors."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

# shape, causal, p, scale, bits stored before, forward (block_m, block_n, warps, stages, split),
# backward (outer, inner, warps, stages, split). 37 and 20 leave partial blocks.
CASES: list[tuple[Any, ...]] = [
    ([2, 1, 37, 16], True, 0.3, 0.3, False, [32, 16, 4, 1, True], [64, 16, 1, 1, True]),
    ([1, 2, 20, 16], False, 0.3, -0.3, False, [32, 16, 4, 1, True], [32, 16, 4, 1, True]),
    ([1, 2, 20, 12], True, 0.0, 0.3, False, [16, 16, 4, 1, False], [16, 16, 4, 1, False]),
    ([2, 1, 1, 16], True, 0.1, 0.3, False, [16, 16, 4, 1, True], [16, 16, 4, 1, True]),
    ([1, 2, 70, 16], True, 0.3, 0.3, True, [32, 64, 4, 1, True], [64, 32, 4, 1, True]),
    ([1, 1, 37, 16], False, 0.3, 0.3, True, [64, 32, 4, 1, False], [32, 64, 4, 1, False]),
    ([1, 1, 20, 16], True, 0.3, 0.0, True, [32, 32, 4, 1, False], [32, 32, 4, 1, False]),
]
MASKS = [[7], [3, 8], [2, 3, 5], [2, 3, 4, 6]]
# batch, heads, length, causal, tile (queries, words, warps)
BITS: list[tuple[list[int], bool, list[int]]] = [
    ([2, 3, 20], True, [128, 4, 4]),
    ([1, 2, 150], True, [64, 2, 4]),
    ([1, 1, 150], False, [32, 1, 4]),
]


def interpret(cases: list[dict[str, object]]) -> list[dict[str, float]]:
    script = Path(__file__).with_name("interpreted.py")
    done = subprocess.run(
        [sys.executable, str(script)],
        input=json.dumps(cases),
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if "only 0-dimensional arrays can be converted" in done.stderr:
        pytest.skip("this triton's interpreter does not work with this numpy")
    assert done.returncode == 0, done.stderr[-3000:]
    result: list[dict[str, float]] = json.loads(done.stdout)
    return result


@pytest.fixture(scope="module")
def results() -> list[dict[str, float]]:
    attention_cases = [
        {
            "kind": "attention",
            "shape": shape,
            "dtype": "float32",
            "causal": causal,
            "p": p,
            "scale": scale,
            "stored": stored,
            "apart": position % 2 == 1,  # dK and dV in one launch, dQ in another
            "site": 4,
            "forward": forward,
            "backward": backward,
        }
        for position, (shape, causal, p, scale, stored, forward, backward) in enumerate(CASES)
    ]
    mask_cases = [{"kind": "mask", "shape": shape, "p": 0.4, "site": 7} for shape in MASKS]
    bits_cases = [
        {"kind": "bits", "shape": shape, "p": 0.4, "site": 7, "causal": causal, "tile": tile}
        for shape, causal, tile in BITS
    ]
    return interpret([*attention_cases, *mask_cases, *bits_cases])


@pytest.mark.parametrize("position", range(len(CASES)))
def test_attention_kernels_give_the_reference(
    results: list[dict[str, float]], position: int
) -> None:
    errors = results[position]
    # With one key dq and dk are 0 in the reference, up to rounding.
    names = ("y", "lse", "dv") if CASES[position][0][2] == 1 else tuple(errors)
    assert {name: errors[name] for name in names if not errors[name] < 2e-6} == {}


@pytest.mark.parametrize("position", range(len(MASKS)))
def test_mask_kernel_gives_the_reference_bits(
    results: list[dict[str, float]], position: int
) -> None:
    assert results[len(CASES) + position]["wrong"] == 0


@pytest.mark.parametrize("position", range(len(BITS)))
def test_packed_bits_are_the_reference_mask(results: list[dict[str, float]], position: int) -> None:
    assert results[len(CASES) + len(MASKS) + position]["wrong"] == 0

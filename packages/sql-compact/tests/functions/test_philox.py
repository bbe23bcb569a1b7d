"""Known answers are Random123's published `kat_vectors` for philox4x32."""

import numpy as np
import pytest
import torch
from sql_compact.functions.philox import philox4x32, philox4x32_numpy, round_keys

ONES = 0xFFFFFFFF
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)
KNOWN_ANSWERS = [
    (7, (0,) * 6, (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
    (7, (ONES,) * 6, (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662)),
    (7, PI, (0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A)),
    (10, (0,) * 6, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (10, (ONES,) * 6, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (10, PI, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


@pytest.mark.parametrize(("rounds", "words", "expected"), KNOWN_ANSWERS)
def test_known_answers(rounds, words, expected):
    assert philox4x32(words[:4], words[4:], rounds) == expected
    tensors = [torch.tensor(word) for word in words]
    assert tuple(int(w) for w in philox4x32(tensors[:4], tensors[4:], rounds)) == expected
    assert tuple(int(w) for w in philox4x32_numpy(words[:4], words[4:], rounds)) == expected


def test_torch_and_numpy_agree_on_random_words_that_broadcast():
    words = np.random.default_rng(5).integers(0, 1 << 32, (6, 500), dtype=np.uint64)
    arrays = [words[0][:, None], words[1], words[2][:, None], words[3], words[4], words[5, 0]]
    tensors = [torch.from_numpy(np.asarray(a).astype(np.int64)) for a in arrays]
    for expected, got in zip(
        philox4x32_numpy(arrays[:4], arrays[4:]), philox4x32(tensors[:4], tensors[4:]), strict=True
    ):
        np.testing.assert_array_equal(got.expand(500, 500).numpy().astype(np.uint64), expected)


def test_seven_rounds_are_the_default():
    assert philox4x32((1, 2, 3, 4), (5, 6)) == philox4x32((1, 2, 3, 4), (5, 6), 7)
    assert philox4x32((1, 2, 3, 4), (5, 6)) != philox4x32((1, 2, 3, 4), (5, 6), 10)


def test_round_keys_wrap_around():
    assert round_keys((ONES, 1), 2) == ((ONES, 1), (0x9E3779B8, 0xBB67AE86))

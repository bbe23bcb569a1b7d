"""The generator against its published vectors, against a word-by-word reading, and as numbers."""

import numpy as np
import pytest
from sql_oracle import OracleError, PhiloxMasks
from sql_oracle.philox import dropout_keep, dropout_words, philox4x32, stream_key

# Known-answer vectors distributed with Random123 for philox4x32: rounds, counter, key, words.
ONES = 0xFFFFFFFF
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
PI_KEY = (0xA4093822, 0x299F31D0)
VECTORS = [
    (7, (0, 0, 0, 0), (0, 0), "5f6fb709 0d893f64 4f121f81 4f730a48"),
    (10, (0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (10, (ONES,) * 4, (ONES,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (10, PI, PI_KEY, "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


@pytest.mark.parametrize(("rounds", "counter", "key", "words"), VECTORS)
def test_published_vectors(rounds, counter, key, words):
    assert " ".join(f"{word:08x}" for word in philox4x32(counter, key, rounds)) == words


@pytest.mark.parametrize("shape", [(9,), (3, 5), (2, 3, 4), (2, 3, 5, 7), (1, 1, 1, 1), (4, 1, 6)])
@pytest.mark.parametrize(("seed", "step", "site"), [(0, 0, 0), (2**63 + 5, 2**40 + 3, 2**32 - 1)])
def test_masks_agree_with_a_reading_of_the_definition_word_by_word(
    word_by_word_mask, shape, seed, step, site
):
    ours = dropout_keep(0.3, seed, step, site, shape)
    assert np.array_equal(ours, word_by_word_mask(0.3, seed, step, site, shape))


def test_chunks_join_without_seams():
    # 3 * 5000 * 5 blocks span two chunk borders; compare a strip across each with the definition.
    shape = (3, 5000, 17)
    words = dropout_words(11, 2, 4, shape)
    key = stream_key(11, 2, 4, 3)
    for block in (8191, 8192, 16383, 16384, 3 * 5000 * 5 - 1):
        row, inner = divmod(block, 5)
        a, b = divmod(row, 5000)
        expected = philox4x32((inner, b, a, 0), key)
        found = words[a, b, 4 * inner : 4 * inner + 4]
        assert tuple(found) == expected[: len(found)]


def test_mean_variance_and_independence():
    rate, shape = 0.2, (8, 64, 128)
    base = dropout_keep(rate, 3, 0, 1, shape)
    count = base.size
    deviation = np.sqrt(rate / (1 - rate))
    assert set(np.unique(base)) == {0.0, 1.25}
    assert abs(base.mean() - 1.0) < 5 * deviation / np.sqrt(count)
    assert abs(base.std() - deviation) < 0.01
    others = {
        "seed": dropout_keep(rate, 4, 0, 1, shape),
        "step": dropout_keep(rate, 3, 1, 1, shape),
        "site": dropout_keep(rate, 3, 0, 2, shape),
        "next in the last dim": np.roll(base, 1, axis=2),
        "next in the middle dim": np.roll(base, 1, axis=1),
        "next in the first dim": np.roll(base, 1, axis=0),
    }
    for name, other in others.items():
        correlation = np.corrcoef(base.ravel(), other.ravel())[0, 1]
        assert abs(correlation) < 5 / np.sqrt(count), name


def test_the_number_of_indices_is_part_of_the_stream():
    flat = dropout_words(1, 1, 1, (64,))
    assert not np.array_equal(flat, dropout_words(1, 1, 1, (1, 64))[0])


def test_rates_at_the_ends():
    assert np.all(dropout_keep(0.0, 1, 0, 0, (5, 5)) == 1.0)
    assert PhiloxMasks(0.0, 1, 0)(0, (5, 5), np.float64) is None
    nearly = dropout_keep(0.999, 1, 0, 0, (50, 50), np.float32)
    assert nearly.dtype == np.float32
    assert set(np.unique(nearly)) <= {np.float32(0), np.float32(1 / (1 - 0.999))}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.0, 0, 0, 0, (2,)), "rate"),
        ((-0.1, 0, 0, 0, (2,)), "rate"),
        ((float("nan"), 0, 0, 0, (2,)), "rate"),
        ((0.1, -1, 0, 0, (2,)), "seed"),
        ((0.1, 2**64, 0, 0, (2,)), "seed"),
        ((0.1, 0, -1, 0, (2,)), "step"),
        ((0.1, 0, 0, 2**32, (2,)), "site"),
        ((0.1, 0, 0, 0, ()), "one to four dims"),
        ((0.1, 0, 0, 0, (1, 1, 1, 1, 1)), "one to four dims"),
    ],
)
def test_arguments_out_of_range_are_named(arguments, message):
    with pytest.raises(OracleError, match=message):
        dropout_keep(*arguments)

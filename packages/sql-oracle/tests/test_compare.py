"""Error measures, and that they cannot be fooled by zeros and non-finite values."""

import math

import numpy as np
import pytest
from sql_oracle import StateMismatch, difference


def test_norm_and_worst_entry():
    b = np.array([[3.0, 0.0], [0.0, 4.0]])
    a = b + np.array([[0.0, 0.5], [0.0, 0.1]])
    found = difference(a, b)
    assert found.norm == pytest.approx(math.sqrt(0.26) / 5.0)
    assert found.index == (0, 1)
    assert (found.actual, found.expected) == (0.5, 0.0)
    assert found.entry == pytest.approx(0.5 / 2.5)  # the root mean square of b is 2.5


def test_scalars():
    found = difference(1.01, 1.0)
    assert found.norm == pytest.approx(0.01)
    assert found.index == ()


def test_float32_against_float64_is_compared_in_float64():
    assert difference(np.float32(0.1) * np.ones(3, np.float32), np.full(3, 0.1)).norm > 1e-9


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_a_value_that_is_not_finite_is_an_infinite_error(bad, side):
    arrays = [np.ones(4), np.ones(4)]
    arrays[side][2] = bad
    found = difference(*arrays)
    assert found.norm == math.inf
    assert found.entry == math.inf
    assert found.index == (2,)


def test_two_infinities_do_not_agree():
    assert difference(np.full(2, np.inf), np.full(2, np.inf)).norm == math.inf


def test_zeros():
    assert difference(np.zeros(3), np.zeros(3)).norm == 0.0
    found = difference(np.array([0.0, 1e-30]), np.zeros(2))
    assert found.norm == math.inf
    assert found.entry == math.inf
    assert found.index == (1,)
    assert difference(np.zeros(2), np.ones(2)).norm == 1.0


def test_one_wrong_entry_in_a_large_array_stands_out():
    b = np.random.default_rng(0).standard_normal(10_000)
    a = b.copy()
    a[77] *= 1.001
    found = difference(a, b)
    assert found.norm < 1e-4
    assert found.index == (77,)
    assert found.entry > 3 * found.norm


def test_no_entries():
    assert difference(np.empty((0, 3)), np.empty((0, 3))).norm == 0.0


def test_shapes_must_agree():
    with pytest.raises(StateMismatch, match=r"\(2,\).*\(3,\)"):
        difference(np.ones(2), np.ones(3))

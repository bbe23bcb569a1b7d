"""Domains: what is equal to what, as SQL compares keys."""

import numpy as np
import pytest
from sql_compact import DomainError
from sql_compact.domain import Explicit, Range, domain_of, positions


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3, 4, 5], Range(3, 3)),
        ([-1, 0], Range(2, -1)),
        ([5], Range(1, 5)),
        (np.array([], dtype=np.int64), Range(0, 0)),
    ],
)
def test_consecutive_integers_are_a_range(values, expected):
    assert domain_of(np.asarray(values), "x") == expected


@pytest.mark.parametrize("values", [[2, 1, 0], [0, 2], [0.0, 1.0], ["a", "b"]])
def test_anything_else_is_listed(values):
    domain = domain_of(np.asarray(values), "x")
    assert isinstance(domain, Explicit)
    assert domain.values().tolist() == values
    assert domain == domain_of(np.asarray(values), "y")


def test_dates_of_every_unit_are_nanoseconds():
    days = np.array(["2024-01-01", "2024-03-01"], dtype="datetime64[D]")
    assert domain_of(days, "x") == domain_of(days.astype("datetime64[s]"), "y")


def test_positions_are_of_equal_values():
    domain = domain_of(np.array([2.5, -0.0, 1.0]), "x")
    assert positions(np.array([1, 0, 7]), domain).tolist() == [2, -1, -1]
    assert positions(np.array([-0.0, 0.0, 2.5]), domain).tolist() == [1, -1, 0]
    assert positions(np.array([4, 5, -1]), Range(2, 4)).tolist() == [0, 1, -1]


def test_a_repeated_value_is_named_with_both_places():
    with pytest.raises(
        DomainError, match="dim 'c': coordinate value 5 occurs at positions 0 and 2"
    ):
        domain_of(np.array([5, 2, 5]), "dim 'c'")


def test_coordinates_have_one_dimension():
    with pytest.raises(DomainError, match="one dimension, not 2"):
        domain_of(np.zeros((2, 2)), "dim 'c'")

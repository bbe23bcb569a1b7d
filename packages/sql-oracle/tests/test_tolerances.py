"""The table of tolerances, and that noise can be measured again."""

import math

import numpy as np
import pytest
import torch
from sql_oracle import PRECISIONS, GPTConfig, OracleError, Tolerance, difference, tolerance_for
from sql_oracle.floors import MEASURED, QUANTITIES, Floor, NoiseFloor
from sql_oracle.noise import largest, measure_noise_floor
from sql_oracle.reorder import EmulatedTf32, Permutation, round_to_tf32
from sql_oracle.tolerances import FACTOR


def device_of(row: NoiseFloor) -> str | None:
    """Where a check uses the row: emulated TF32 serves a GPU until one was measured."""
    if "emulated" not in row.device:
        return row.device.partition(" ")[0]
    measured = any(
        other.device.startswith("cuda") and other.steps >= row.steps
        for other in MEASURED
        if other.precision == row.precision
    )
    return None if measured else "cuda"


def test_no_tolerance_is_looser_than_ten_times_its_floor():
    assert FACTOR <= 10.0
    for row in MEASURED:
        device = device_of(row)
        if device is None:
            continue
        tolerance = tolerance_for(
            row.precision,
            parameters=row.config.parameters,
            steps=row.steps,
            device=device,
            learning_rate=row.learning_rate,
        )
        assert tolerance.floor is row
        for quantity, limit in tolerance.limits.items():
            floor = row.floors[quantity]
            assert 0.0 < limit.norm <= 10.0 * floor.norm
            if quantity != "weight":
                assert 0.0 < limit.entry <= 10.0 * floor.entry


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_has_floors_of_several_sizes_and_lengths(precision):
    rows = [row for row in MEASURED if row.precision == precision]
    assert len({row.config.parameters for row in rows}) == 3
    assert {row.steps for row in rows} == {5, 100}
    assert all(set(row.floors) == set(QUANTITIES) for row in rows)


def test_the_row_is_chosen_by_size_length_and_learning_rate():
    def chosen(parameters, steps, rate=0.0):
        found = tolerance_for(
            "float32", parameters=parameters, steps=steps, device="cpu", learning_rate=rate
        )
        return found.floor.config.width, found.floor.steps

    assert chosen(100, 1) == (32, 5)
    assert chosen(100_000, 5) == (128, 5)
    assert chosen(10_745_088, 5) == (384, 5)
    assert chosen(10**9, 5) == (384, 5)
    assert chosen(100, 6) == (32, 100)
    assert chosen(100, 2, 1e-3) == (32, 100)
    assert chosen(100, 2, 1.0) == (32, 100)


def test_a_floor_of_the_same_kind_of_device_is_preferred_if_it_is_long_and_fast_enough():
    def device(steps, rate=0.0):
        found = tolerance_for(
            "tf32", parameters=10**7, steps=steps, device="cuda:0", learning_rate=rate
        )
        return found.floor.device

    assert device(5) == "cuda (NVIDIA H200)"
    assert device(6) == "cpu (emulated)"
    assert device(2, 1e-3) == "cpu (emulated)"


def test_tf32_on_a_cpu_is_float32():
    found = tolerance_for("tf32", parameters=1, steps=1, device="cpu")
    assert found.precision == "float32"


def test_more_steps_than_were_measured_are_refused():
    with pytest.raises(OracleError, match="follow mode"):
        tolerance_for("float64", parameters=1, steps=101, device="cpu")


def test_a_tolerance_of_ones_own(gpt_case, faults):
    loose = Tolerance.uniform("float64", 1e-2)
    assert gpt_case.but(faults=faults(gradient_entry="wte")).check(1, tolerance=loose).passed


@pytest.mark.parametrize("precision", PRECISIONS)
def test_measured_again_the_noise_is_of_the_recorded_order(precision):
    config = GPTConfig(layers=2, heads=2, width=32, context=16)
    found = measure_noise_floor(config, precision, batch_size=3, steps=1, seed=3)
    row = next(
        row
        for row in MEASURED
        if row.precision == precision and row.config == config and row.steps == 5
    )
    assert found.device == row.device
    for quantity, floor in found.floors.items():
        # One step of one seed is not noisier than five steps of several, but for the heavy tails.
        assert floor.norm <= 3.0 * row.floors[quantity].norm, quantity
    gradient = found.floors["gradient"].norm
    assert gradient >= 0.1 * row.floors["gradient"].norm


def test_the_worst_of_several_seeds_counts():
    config = GPTConfig(layers=1, heads=1, width=8, context=4, vocabulary=5)

    def row(gradient: Floor, loss: Floor) -> NoiseFloor:
        floors = {"gradient": gradient, "loss": loss}
        return NoiseFloor("float32", config, 2, 5, "cpu", floors)

    found = largest([row(Floor(1.0, 5.0), Floor(3.0, 3.0)), row(Floor(2.0, 4.0), Floor(1.0, 1.0))])
    assert found.floors == {"gradient": Floor(2.0, 5.0), "loss": Floor(3.0, 3.0)}


def test_permuting_channels_changes_nothing_but_the_order():
    config = GPTConfig(layers=1, heads=2, width=8, context=4, vocabulary=5)
    permutation = Permutation.random(config, 1)
    array = np.arange(24.0 * 8).reshape(24, 8)
    there = permutation.arrays({"transformer.h.0.attn.c_attn.weight": array})
    back = permutation.inverse.arrays(there)["transformer.h.0.attn.c_attn.weight"]
    assert np.array_equal(back, array)
    assert not np.array_equal(there["transformer.h.0.attn.c_attn.weight"], array)


def test_rounding_to_tf32():
    values = torch.tensor([1.0, 1.0 + 2**-10, 1.0 + 2**-11, 1.0 + 2**-12, -3.0, 0.0])
    expected = torch.tensor([1.0, 1.0 + 2**-10, 1.0 + 2**-10, 1.0, -3.0, 0.0])
    assert torch.equal(round_to_tf32(values), expected)


def test_emulated_tf32_rounds_operands_forward_and_backward():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 64, generator=generator)
    w = torch.randn(5, 64, generator=generator, requires_grad=True)
    exact = torch.nn.functional.linear(x.double(), w.double())
    (exact_gradient,) = torch.autograd.grad(exact.square().sum(), w)
    with EmulatedTf32():
        found = torch.nn.functional.linear(x, w)
        (gradient,) = torch.autograd.grad(found.square().sum(), w)
    for ours, theirs in ((found, exact), (gradient, exact_gradient)):
        error = difference(ours.detach().numpy(), theirs.detach().numpy()).norm
        assert 2**-14 < error < 2**-10
    assert math.isclose(float(found.detach().sum()), float(exact.detach().sum()), rel_tol=0.05)

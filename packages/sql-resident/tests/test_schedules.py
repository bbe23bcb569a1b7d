from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sql_resident.errors import SessionError
from sql_resident.schedules import (
    SCHEDULES,
    Constant,
    Schedule,
    StepDecay,
    WarmupCosine,
    WarmupLinear,
    as_schedule,
    from_json,
)

rates = st.floats(0, 10, allow_subnormal=False)
positive = st.floats(1e-12, 10)


@st.composite
def decays(draw: st.DrawFn) -> WarmupCosine | WarmupLinear:
    peak = draw(positive)
    total = draw(st.integers(1, 10_000))
    kind = draw(st.sampled_from([WarmupCosine, WarmupLinear]))
    return kind(
        peak=peak,
        floor=peak * draw(st.floats(0, 1)),
        warmup=draw(st.integers(0, total - 1)),
        total=total,
    )


schedules = st.one_of(
    st.builds(Constant, rates),
    st.builds(StepDecay, rates, st.floats(0.01, 1), st.integers(1, 1000)),
    decays(),
)
steps = st.integers(0, 20_000)


@given(schedule=schedules, step=steps)
def test_from_json_of_to_json_is_identity_and_gives_the_same_rates(schedule, step):
    restored = from_json(json.loads(json.dumps(schedule.to_json())))
    assert restored == schedule
    assert type(restored) is type(schedule)
    assert restored(step) == schedule(step)
    assert isinstance(schedule, Schedule)


@given(schedule=decays(), step=steps)
def test_warm_up_rises_then_the_rate_falls_to_the_floor(schedule, step):
    now, after = schedule(step), schedule(step + 1)
    rounding = 1e-12 * schedule.peak
    assert 0 <= now <= schedule.peak + rounding
    if step + 1 <= schedule.warmup:
        assert after > now > 0
    else:
        assert after <= now + rounding
        assert now >= schedule.floor - rounding
    if step >= schedule.total:
        assert now == schedule.floor


@pytest.mark.parametrize("kind", [WarmupCosine, WarmupLinear])
def test_ends_of_the_decays(kind):
    schedule = kind(peak=1e-3, floor=1e-4, warmup=100, total=5000)
    assert schedule(0) == 1e-3 / 101
    assert schedule(99) == 1e-3 * 100 / 101
    assert schedule(100) == 1e-3
    assert schedule(2550) == pytest.approx(5.5e-4, rel=1e-14)
    assert schedule(4999) > 1e-4
    assert schedule(5000) == 1e-4
    assert schedule(10**12) == 1e-4


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0, 1 / 4),
        (2, 3 / 4),
        (3, 1.0),
        (5, 0.1 + 0.9 * (2 + math.sqrt(2)) / 4),
        (7, 0.55),
        (9, 0.1 + 0.9 * (2 - math.sqrt(2)) / 4),
        (11, 0.1),
    ],
)
def test_warmup_cosine_at_eighths_of_a_turn(step, expected):
    schedule = WarmupCosine(peak=1.0, floor=0.1, warmup=3, total=11)
    assert schedule(step) == pytest.approx(expected, rel=1e-15)


def test_warmup_linear_by_hand():
    schedule = WarmupLinear(peak=2.0, floor=1.0, warmup=1, total=5)
    assert [schedule(step) for step in range(7)] == [1.0, 2.0, 1.75, 1.5, 1.25, 1.0, 1.0]


def test_without_warm_up_the_first_rate_is_the_peak():
    assert WarmupCosine(peak=3.0, floor=0.0, warmup=0, total=1)(0) == 3.0


def test_step_decay_by_hand():
    schedule = StepDecay(lr=8.0, factor=0.5, every=3)
    assert [schedule(step) for step in range(8)] == [8, 8, 8, 4, 4, 4, 2, 2]
    assert schedule(10**9) == 0.0


def test_constant_and_numbers():
    assert as_schedule(0.25) == Constant(0.25)
    assert as_schedule(0.25)(7) == 0.25
    decay = StepDecay(1.0, 0.5, 2)
    assert as_schedule(decay) is decay
    with pytest.raises(SessionError, match="Constant: lr is 'fast'"):
        as_schedule("fast")


def test_a_function_of_the_user_with_to_json_is_a_schedule():
    class Halving:
        def __call__(self, step):
            return 0.5**step

        def to_json(self):
            return {"kind": "halving"}

    halving = Halving()
    assert as_schedule(halving) is halving


def test_integers_become_floats_so_that_equal_schedules_have_equal_json():
    assert Constant(1).to_json() == {"kind": "constant", "lr": 1.0}
    assert json.dumps(Constant(1).to_json()) == json.dumps(Constant(1.0).to_json())


def test_numpy_steps_do_and_other_steps_are_refused():
    schedule = WarmupLinear(peak=2.0, floor=1.0, warmup=1, total=5)
    assert schedule(np.int64(2)) == schedule(2)
    for every in (Constant(1.0), schedule, StepDecay(1.0, 0.5, 1)):
        with pytest.raises(SessionError, match="a step is not negative: -1"):
            every(-1)
        with pytest.raises(SessionError, match=r"a step is an int, not 1\.5"):
            every(1.5)


def test_schedules_are_immutable():
    with pytest.raises(FrozenInstanceError):
        Constant(1.0).lr = 2.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(-1.0), "Constant: lr is -1.0; it must be finite and not negative"),
        (lambda: Constant(math.nan), "lr is nan"),
        (lambda: Constant(math.inf), "lr is inf"),
        (lambda: Constant(True), "lr is True; it must be a number"),
        (lambda: WarmupCosine(0.0, 0.0, 1, 2), "peak is 0.0; it must be finite and positive"),
        (lambda: WarmupCosine(1.0, 2.0, 1, 2), "floor is 2.0; it must be at most the peak, 1.0"),
        (lambda: WarmupCosine(1.0, 0.1, -1, 2), "warmup is -1; it must be at least 0"),
        (lambda: WarmupLinear(1.0, 0.1, 2, 2), "warmup is 2; it must be below the total of 2"),
        (lambda: WarmupLinear(1.0, 0.1, 0, 0), "total is 0; it must be at least 1"),
        (lambda: WarmupLinear(1.0, 0.1, 0.5, 3), "warmup is 0.5; it must be an int"),
        (lambda: StepDecay(1.0, 0.0, 3), "factor is 0.0"),
        (lambda: StepDecay(1.0, 1.5, 3), "factor is 1.5; it must be at most 1"),
        (lambda: StepDecay(1.0, 0.5, 0), "every is 0"),
        (lambda: from_json({"kind": "magic"}), "unknown schedule 'magic'; known are constant"),
        (lambda: from_json({"lr": 1.0}), "unknown schedule None"),
        (lambda: from_json({"kind": ["constant"]}), r"unknown schedule ['constant']"),
        (lambda: from_json(0.1), "a schedule is a JSON object with 'kind', not 0.1"),
        (lambda: from_json({"kind": "constant"}), "has the parameters ['lr'], not []"),
        (lambda: from_json({"kind": "constant", "lr": 1.0, "x": 2}), "not ['lr', 'x']"),
        (lambda: from_json({"kind": "constant", "lr": -1.0}), "lr is -1.0"),
    ],
)
def test_invalid_schedules_say_what_is_wrong(make, message):
    with pytest.raises(SessionError) as caught:
        make()
    assert message in str(caught.value)


def test_every_schedule_is_in_the_table_under_its_kind():
    assert set(SCHEDULES) == {"constant", "warmup_cosine", "warmup_linear", "step_decay"}
    assert all(schedule.kind == kind for kind, schedule in SCHEDULES.items())

"""Batches made ready ahead of their step: the same update, at another time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sql_compact import CompactError, DomainError
from sql_resident import SessionError, fit
from sql_resident.staging import Staging


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["eager", "fixed"])
def make(request, embedding):
    return lambda: embedding.session(compile=request.param, precision="float32")


def test_a_staged_batch_gives_the_same_bits(make, embedding, same_bits):
    session, by_hand = make(), make()
    staged = session.stage(embedding.batch_of(0))
    for position in range(4):
        following = []

        def meanwhile(position=position, following=following):
            following.append(session.stage(embedding.batch_of(position + 1)))

        report = session.step(staged, meanwhile=meanwhile)
        assert report == by_hand.step(embedding.batch_of(position))
        (staged,) = following
    assert same_bits(session.state(), by_hand.state())


def test_staged_batches_keep_their_order_of_use_not_of_staging(make, embedding, same_bits):
    session, by_hand = make(), make()
    staged = [session.stage(embedding.batch_of(position)) for position in range(3)]
    for position in (1, 1, 0, 2):
        assert session.step(staged[position]) == by_hand.step(embedding.batch_of(position))
    assert same_bits(session.state(), by_hand.state())


def test_a_staged_batch_is_a_snapshot(make, embedding, same_bits):
    session, by_hand = make(), make()
    batch = {name: array.copy() for name, array in embedding.batch_of(0).items()}
    staged = session.stage(batch)
    for array in batch.values():
        array[...] = 0
    session.step(staged)
    by_hand.step(embedding.batch_of(0))
    assert same_bits(session.state(), by_hand.state())


def test_evaluation_in_between_does_not_reach_a_staged_batch(make, embedding, same_bits):
    session, by_hand = make(), make()
    staged = session.stage(embedding.batch_of(0))
    session.evaluate(embedding.batch_of(1))
    assert session.step(staged) == by_hand.step(embedding.batch_of(0))


def test_staged_micro_batches_are_accumulated(linear, same_bits):
    session, by_hand = linear.session(), linear.session()
    batches = [linear.batch_of(0), linear.batch_of(1)]
    session.step([session.stage(batches[0]), batches[1]], meanwhile=lambda: None)
    by_hand.step(batches)
    assert same_bits(session.state(), by_hand.state())


def test_a_wrong_batch_is_refused_when_it_is_staged(embedding, same_bits):
    session, by_hand = embedding.session(), embedding.session()
    wrong = {name: np.full_like(a, 10**6) for name, a in embedding.batch_of(0).items()}
    with pytest.raises(DomainError):
        session.stage(wrong)
    session.step(embedding.batch_of(0))
    by_hand.step(embedding.batch_of(0))
    assert same_bits(session.state(), by_hand.state())


def test_a_batch_of_another_session_is_refused(linear):
    staged = linear.session().stage(linear.batch_of(0))
    with pytest.raises(SessionError, match="another session"):
        linear.session().step(staged)


@pytest.mark.parametrize("micro", [False, True])
def test_an_error_meanwhile_leaves_the_state(micro, linear, same_bits):
    session = linear.session()
    before, batch = session.state(), linear.batch_of(0)

    def meanwhile():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session.step([batch, batch] if micro else batch, meanwhile=meanwhile)
    assert same_bits(session.state(), before)
    assert (session.step_count, session.data_position) == (0, 0)


def test_a_loop_asks_for_each_batch_once_and_for_none_too_many(linear):
    asked = []

    def batches(position):
        asked.append(position)
        return linear.batch_of(position)

    fit(linear.session(), batches, steps=4)
    assert asked == [0, 1, 2, 3]


def test_a_loop_raises_what_is_wrong_with_a_batch_at_its_turn(linear):
    session = linear.session()

    def batches(position):
        if position == 2:
            raise SessionError("no such batch")
        return linear.batch_of(position)

    with pytest.raises(CompactError, match="no such batch"):
        fit(session, batches, steps=4)
    assert session.step_count == 2


def test_uploads_alternate_between_two_blocks_of_host_memory():
    cpu, dtypes = torch.device("cpu"), {"x": torch.float32, "n": torch.int64}
    inputs = {"x": torch.zeros(3), "n": torch.zeros((), dtype=torch.int64)}
    staging = Staging(inputs, dtypes, cpu)
    places = {name: array.data_ptr() for name, array in staging.arrays.items()}
    for value in range(1, 5):
        given = {"x": torch.full((3,), float(value)), "n": torch.tensor(value)}
        staging.upload(given)
        assert all(torch.equal(staging.arrays[name], array) for name, array in given.items())
        # What the device may still be reading is that of the upload before.
        assert float(staging._views[1]["x"][0]) == value - 1
    assert places == {name: array.data_ptr() for name, array in staging.arrays.items()}

"""The training loop: what ends it, what it saves, and that it can be continued."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest
from sql_resident import (
    AdamW,
    CheckpointFolder,
    NonFiniteState,
    SessionError,
    StopReason,
    fit,
)
from sql_resident.checkpoint import load_manifest


def test_it_ends_after_its_steps(linear, same_bits):
    session, by_hand, seen = linear.session(), linear.session(), []
    result = fit(session, linear.batch_of, steps=5, on_report=seen.append)
    reports = [by_hand.step(linear.batch_of(position)) for position in range(5)]
    assert (result.reason, result.updates, result.last) == (StopReason.STEPS, 5, reports[-1])
    assert seen == reports
    assert same_bits(session.state(), by_hand.state())
    assert fit(session, linear.batch_of, steps=5).updates == 0


def test_micro_batches_are_accumulated(linear):
    session = linear.session()
    fit(session, lambda i: [linear.batch_of(2 * i), linear.batch_of(2 * i + 1)], steps=2)
    assert session.step_count == 2


def test_no_update_starts_after_the_time_is_over(linear):
    result = fit(linear.session(), linear.batch_of, steps=10**9, max_time=0.2)
    assert result.reason is StopReason.TIME
    assert result.updates > 0
    assert fit(linear.session(), linear.batch_of, steps=5, max_time=0).updates == 0


def test_patience_counts_evaluations_without_improvement(linear, tmp_path):
    losses = iter([3.0, 2.0, 2.5, float("nan"), 1.0, 1.2, 0.95, 1.1, 0.0])
    folder = CheckpointFolder(tmp_path, keep_last=1, best="validation_loss")
    result = fit(
        linear.session(),
        linear.batch_of,
        steps=100,
        validate=lambda session: next(losses),
        validate_every=2,
        patience=3,
        min_improvement=0.1,
        checkpoints=folder,
    )
    assert result.reason is StopReason.EARLY_STOPPING
    assert [step for step, _ in result.validation] == list(range(2, 17, 2))
    assert next(losses, None) == 0.0
    assert folder.steps() == (14, 16)
    assert result.checkpoint == folder.latest() == folder.file_of(16)


def test_the_best_evaluation_is_the_lowest(linear):
    losses = iter([3.0, 1.0, 2.0])
    result = fit(
        linear.session(),
        linear.batch_of,
        steps=3,
        validate=lambda s: next(losses),
        validate_every=1,
    )
    assert result.best == (2, 1.0)


def test_what_is_saved_holds_step_and_validation_loss(linear, tmp_path):
    folder = CheckpointFolder(tmp_path, keep_last=10)
    fit(
        linear.session(),
        linear.batch_of,
        steps=7,
        validate=lambda session: session.evaluate(linear.batch_of(100)),
        validate_every=4,
        save_every=3,
        checkpoints=folder,
    )
    assert folder.steps() == (3, 4, 6, 7)
    assert "validation_loss" in load_manifest(folder.file_of(4)).metrics
    assert not load_manifest(folder.file_of(7)).metrics


@pytest.fixture
def default_interrupt():
    """Python's own handling of Ctrl-C, which a process started in the background does not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_after_the_update_and_leaves_a_loadable_file(
    linear, same_bits, tmp_path, default_interrupt
):
    folder = CheckpointFolder(tmp_path)
    session, whole = linear.session(optimizer=AdamW()), linear.session(optimizer=AdamW())

    def press(report):
        if report.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    result = fit(session, linear.batch_of, steps=10, checkpoints=folder, on_report=press)
    assert (result.reason, session.step_count) == (StopReason.INTERRUPT, 3)
    assert signal.getsignal(signal.SIGINT) is default_interrupt
    resumed = linear.session(optimizer=AdamW())
    resumed.restore(result.checkpoint)
    fit(resumed, linear.batch_of, steps=10)
    fit(whole, linear.batch_of, steps=10)
    assert same_bits(resumed.state(), whole.state())


def test_a_second_ctrl_c_interrupts_at_once(linear, default_interrupt):
    session = linear.session()

    def press(report):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fit(session, linear.batch_of, steps=10, on_report=press)
    assert session.step_count == 1
    session.step(linear.batch_of(1))


def test_it_runs_outside_the_main_thread(linear):
    results = []
    thread = threading.Thread(
        target=lambda: results.append(fit(linear.session(), linear.batch_of, steps=3))
    )
    thread.start()
    thread.join()
    assert results[0].updates == 3


def bad(linear, position):
    batch = linear.batch_of(position)
    batch["y"][0] = 1e200
    return batch


def test_a_skipped_batch_is_passed_over(linear):
    session = linear.session(on_non_finite="skip")
    positions = []

    def batches(position):
        positions.append(position)
        return bad(linear, position) if position == 1 else linear.batch_of(position)

    fit(session, batches, steps=3)
    assert positions == [0, 1, 2, 3]
    assert session.counters.skipped == 1


def test_nothing_but_skipped_batches_is_an_error(linear):
    session = linear.session(on_non_finite="skip")
    with pytest.raises(NonFiniteState, match="100 batches in a row gave no finite update"):
        fit(session, lambda position: bad(linear, position), steps=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": -1}, "steps is -1"),
        ({"max_time": -1.0}, "max_time is -1.0"),
        ({"max_time": np.nan}, "max_time is nan"),
        ({"max_time": "1"}, "max_time is '1'"),
        ({"max_time": True}, "max_time is True"),
        ({"validate_every": 0}, "validate_every is 0"),
        ({"validate_every": None}, "validate_every is None"),
        ({"validate_every": 1.5}, "validate_every is 1.5"),
        ({"validate_every": "1"}, "validate_every is '1'"),
        ({"patience": np.nan}, "patience is nan"),
        ({"save_every": 1}, "save_every needs checkpoints"),
        ({"min_improvement": "x"}, "min_improvement is 'x'"),
        ({"min_improvement": np.nan}, "min_improvement is nan"),
        ({"validate": 1.0}, "validate is a float; it must be a function"),
        ({"on_report": 1}, "on_report is a int; it must be a function"),
        ({"checkpoints": "folder"}, "checkpoints is a str; it must be a CheckpointFolder"),
        ({"save_every": 0}, "save_every is 0"),
        ({"patience": 2}, "patience needs validate"),
    ],
)
def test_wrong_arguments_are_refused(options, message, linear):
    with pytest.raises(SessionError, match=message):
        fit(linear.session(), linear.batch_of, **{"steps": 1, **options})


@pytest.mark.parametrize("loss", [None, "small", np.ones(2)])
def test_a_validation_loss_that_is_no_number(loss, linear):
    with pytest.raises(SessionError, match="fit: validate gives"):
        fit(linear.session(), linear.batch_of, steps=1, validate=lambda s: loss, validate_every=1)


def fails(*_):
    raise RuntimeError("lost connection")


@pytest.mark.parametrize("where", ["batches", "on_report", "validate", "step"])
def test_an_error_saves_the_last_whole_state(where, linear, same_bits, tmp_path):
    folder = CheckpointFolder(tmp_path)
    session = linear.session(optimizer=AdamW())
    fit(session, linear.batch_of, steps=2)
    batches, options, kind = linear.batch_of, {}, RuntimeError
    if where == "batches":
        batches = fails
    elif where == "step":
        batches, kind = (lambda position: bad(linear, position)), NonFiniteState
    else:
        options = {where: fails, "validate_every": 1}
    with pytest.raises(kind) as caught:
        fit(session, batches, steps=5, checkpoints=folder, **options)
    assert not hasattr(caught.value, "__notes__")
    resumed = linear.session(optimizer=AdamW())
    resumed.restore(folder.latest())
    assert resumed.step_count == session.step_count
    assert same_bits(resumed.state(), session.state())
    fit(session, linear.batch_of, steps=5)


def test_an_error_is_not_hidden_by_a_save_that_fails_too(linear, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RuntimeError, match="lost connection") as caught:
        fit(
            linear.session(),
            linear.batch_of,
            steps=5,
            checkpoints=CheckpointFolder(tmp_path / "file"),
            on_report=fails,
        )
    assert "the state of step 1 is not saved: cannot make the folder" in caught.value.__notes__[0]

"""A step that fails, whatever the reason and the moment, leaves everything as it was."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from sql_compact import DomainError
from sql_resident import AdamW, NonFiniteState, OutOfMemory, SessionError


class Poisoned(AdamW):
    """AdamW whose new weights are NaN while ``hyper.poison`` is not 0."""

    def statements(self, parameters):
        statements = dict(super().statements(parameters))
        for p in parameters:
            keys = p.keys("n")
            statements[f"{p.name}_clean"] = statements.pop(p.next())
            statements[p.next()] = f"""SELECT {keys}
            n.val + CASE WHEN h.poison > 0.0 THEN SQRT(0.0 - h.poison) ELSE 0.0 END AS val
            FROM {p.name}_clean n CROSS JOIN hyper h"""
        return statements


def make(problem, **options):
    return problem.session(optimizer=AdamW(), learning_rate=0.05, ema_decay=0.9, **options)


def snapshot(session):
    return session.state(), session.step_count, session.data_position


def unchanged(session, before, same_bits) -> bool:
    return same_bits(session.state(), before[0]) and (
        (session.step_count, session.data_position) == before[1:]
    )


def bad_token(session, problem):
    batch = problem.batch_of(2)
    batch["tokens"][1, 2] = 99
    with pytest.raises(DomainError, match="value 99 at"):
        session.step(batch)


def infinite_loss(session, problem):
    batch = problem.batch_of(2)
    batch["y"][0] = 1e200
    with pytest.raises(NonFiniteState, match="update 3: loss is inf; the state is as it was"):
        session.step(batch)


def infinite_loss_of_a_micro_batch(session, problem):
    bad = problem.batch_of(2)
    bad["y"][0] = 1e200
    with pytest.raises(NonFiniteState, match="loss is inf"):
        session.step([problem.batch_of(2), bad])


def bad_token_of_a_micro_batch(session, problem):
    bad = problem.batch_of(2)
    bad["tokens"][0, 0] = -1
    with pytest.raises(DomainError, match="value -1 at"):
        session.step([problem.batch_of(2), bad])


@pytest.mark.parametrize(
    "fail",
    [bad_token, infinite_loss, infinite_loss_of_a_micro_batch, bad_token_of_a_micro_batch],
)
def test_a_failed_step_changes_nothing(fail, embedding, same_bits):
    session, never_failed = make(embedding), make(embedding)
    for position in range(2):
        session.step(embedding.batch_of(position))
        never_failed.step(embedding.batch_of(position))
    before = snapshot(session)
    fail(session, embedding)
    assert unchanged(session, before, same_bits)
    good = embedding.batch_of(2)
    assert session.step(good) == never_failed.step(good)
    assert same_bits(session.state(), never_failed.state())


def test_new_weights_that_are_nan_are_not_published(linear, same_bits):
    options = {"optimizer": Poisoned(), "hyper": {"poison": 0.0}}
    session, never_failed = linear.session(**options), linear.session(**options)
    session.step(linear.batch_of(0))
    never_failed.step(linear.batch_of(0))
    before = snapshot(session)
    session.set_hyper(poison=1.0)
    with pytest.raises(NonFiniteState, match="update 2: sum of the new state is nan"):
        session.step(linear.batch_of(1))
    assert unchanged(session, before, same_bits)
    session.set_hyper(poison=0.0)
    assert session.step(linear.batch_of(1)) == never_failed.step(linear.batch_of(1))
    assert same_bits(session.state(), never_failed.state())


def test_skipping_counts_and_moves_on_to_the_next_batch(linear, same_bits):
    session, never_failed = make(linear, on_non_finite="skip"), make(linear)
    bad = linear.batch_of(0)
    bad["y"][0] = 1e200
    report = session.step(bad)
    assert (report.valid, report.step, session.step_count) == (False, 0, 0)
    assert (session.data_position, session.counters.skipped, session.counters.steps) == (1, 1, 0)
    good = linear.batch_of(1)
    assert session.step(good) == never_failed.step(good)
    assert same_bits(session.state(), never_failed.state())


class Interruption(torch.overrides.TorchFunctionMode):
    """Raises at the n-th torch function inside."""

    def __init__(self, after: int, error: BaseException) -> None:
        super().__init__()
        self.left, self.error = after, error

    def __torch_function__(self, function, types, args=(), kwargs=None):
        # An error in the restoring of the gradient mode would be torch's, not the step's.
        if "grad_enabled" not in function.__name__:
            self.left -= 1
        if self.left == 0:
            self.left = -1
            raise self.error
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("accumulated", [False, True], ids=["one batch", "micro-batches"])
@pytest.mark.parametrize("error", [RuntimeError("device lost"), KeyboardInterrupt()])
def test_an_exception_at_every_operation_of_a_step_changes_nothing(
    accumulated, error, linear, same_bits
):
    session, never_failed = make(linear), make(linear)
    batches = [[linear.batch_of(2 * i), linear.batch_of(2 * i + 1)] for i in range(2)]
    first, second = batches if accumulated else (batches[0][0], batches[1][0])
    session.step(first)
    never_failed.step(first)
    before = snapshot(session)
    place = 0
    while True:
        place += 1
        try:
            with Interruption(place, error):
                report = session.step(second)
        except type(error):
            assert unchanged(session, before, same_bits)
        else:
            break
    assert place > 30
    assert report == never_failed.step(second)
    assert same_bits(session.state(), never_failed.state())


def test_an_interrupt_at_every_line_leaves_the_old_state_or_the_new_one(
    linear, same_bits, interrupted_at_line
):
    """Python's own Ctrl-C arrives between lines: here it arrives at each of them in turn."""
    session, clean = make(linear), make(linear)
    states = [clean.state()]
    for position in range(3):
        clean.step(linear.batch_of(position))
        states.append(clean.state())
    session.step(linear.batch_of(0))
    outcomes = set()
    place = 0
    while True:
        place += 1
        step = session.step_count
        batch = linear.batch_of(step)
        finished = not interrupted_at_line(place, session.step, batch)
        made = session.step_count - step
        outcomes.add((finished, made))
        assert same_bits(session.state(), states[session.step_count])
        assert session.data_position == session.step_count
        if finished:
            break
        if made:
            session.set_weights(linear.weights())
            session.step(linear.batch_of(0))
    assert place > 50
    # Interrupted before the update, after it but before the report, and not at all.
    assert outcomes == {(False, 0), (False, 1), (True, 1)}


def test_out_of_memory_says_what_is_needed(linear, same_bits):
    session = make(linear)
    session.step(linear.batch_of(0))
    before = snapshot(session)
    with (
        pytest.raises(OutOfMemory, match=r"does not fit on cpu: it needs about \d+ MiB"),
        Interruption(5, torch.OutOfMemoryError("CUDA out of memory")),
    ):
        session.step(linear.batch_of(1))
    assert unchanged(session, before, same_bits)


def test_reports_exports_and_results_are_snapshots(mlp, same_bits):
    session = make(mlp)
    report = session.step(mlp.batch_of(0))
    kept = (
        session.state(),
        session.weights(ema=True),
        session.gradients(mlp.batch_of(1)),
        {n: a.values for n, a in session.dataset().items()},
        session.checkpoint().arrays,
    )
    result = session.sql("SELECT i, j, val FROM w1")
    copies = [{n: np.array(a) for n, a in group.items()} for group in kept]
    values, facts = result.to_xarray().values.copy(), (report.step, report.loss, report.grad_norm)
    for position in range(1, 5):
        session.step(mlp.batch_of(position))
    for group, copy in zip(kept, copies, strict=True):
        assert same_bits(dict(group), copy)
    assert result.to_xarray().values.tobytes() == values.tobytes()
    assert facts == (report.step, report.loss, report.grad_norm)
    assert not same_bits(session.weights(), copies[3])


def test_writing_to_what_was_exported_or_passed_in_does_not_reach_the_session(mlp, same_bits):
    parameters, batch = mlp.parameters(), mlp.batch_of(0)
    session, other = mlp.session(parameters=parameters), mlp.session()
    for array in parameters.values():
        array.values[:] = 99.0
    session.step(batch)
    other.step(mlp.batch_of(0))
    for array in (*batch.values(), *session.state().values(), *session.weights().values()):
        array[:] = 0
    assert same_bits(session.state(), other.state())


def test_evaluation_and_queries_have_no_effect(embedding, same_bits):
    options = {"hyper": {"dropout": 0.4}, "seed": 5}
    session, other = make(embedding, **options), make(embedding, **options)
    for position in range(4):
        batch = embedding.batch_of(position)
        first = session.evaluate(embedding.batch_of(50))
        assert first == session.evaluate(embedding.batch_of(50))
        session.evaluate(embedding.batch_of(50), ema=True)
        session.gradients(batch)
        session.sql("SELECT SUM(val) AS val FROM readout")
        session.state()
        assert session.step(batch) == other.step(batch)
    assert same_bits(session.state(), other.state())


def test_evaluation_is_without_dropout(embedding):
    session = embedding.session(hyper={"dropout": 0.5})
    batch = embedding.batch_of(0)
    weights = {n: torch.from_numpy(a) for n, a in embedding.weights().items()}
    expected = embedding.torch_loss(weights, batch).item()
    assert session.evaluate(batch) == pytest.approx(expected, rel=1e-13)
    assert session.step(batch).loss != pytest.approx(expected, rel=1e-3)


def test_ema_needs_to_be_kept(linear):
    with pytest.raises(SessionError, match="keeps no average; give it ema_decay"):
        linear.session().evaluate(linear.batch_of(0), ema=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda s, p: s.step(p.batch_of(5)),
        lambda s, p: s.set_weights(p.weights()),
        lambda s, p: s.set_hyper(poison=0.0),
        lambda s, p: setattr(s, "seed", 3),
        lambda s, p: setattr(s, "learning_rate", 0.5),
    ],
    ids=["step", "set_weights", "set_hyper", "seed", "learning_rate"],
)
def test_what_meanwhile_changes_stays_and_the_update_is_refused(change, linear, same_bits):
    options = {"optimizer": Poisoned(), "hyper": {"poison": 0.0}}
    session, other = linear.session(**options), linear.session(**options)
    for one in (session, other):
        one.step(linear.batch_of(0))
    with pytest.raises(SessionError, match="meanwhile: it has changed the session"):
        session.step(linear.batch_of(1), meanwhile=lambda: change(session, linear))
    change(other, linear)
    assert same_bits(session.state(), other.state())
    position = other.data_position
    assert session.step(linear.batch_of(position)) == other.step(linear.batch_of(position))
    assert same_bits(session.state(), other.state())


def test_meanwhile_may_look(linear):
    session = make(linear)
    seen = []

    def look():
        seen.append(session.evaluate(linear.batch_of(9)))
        session.checkpoint()
        session.stage(linear.batch_of(1))

    assert session.step(linear.batch_of(0), meanwhile=look).valid
    assert seen


@pytest.mark.parametrize(
    "use",
    [
        lambda s, p: s.step(p.batch_of(1)),
        lambda s, p: s.evaluate(p.batch_of(1)),
        lambda s, p: s.gradients(p.batch_of(1)),
        lambda s, p: s.stage(p.batch_of(1)),
        lambda s, p: s.state(),
        lambda s, p: s.checkpoint(),
        lambda s, p: s.sql("SELECT SUM(val) AS val FROM w"),
        lambda s, p: s.set_weights(p.weights()),
        lambda s, p: setattr(s, "learning_rate", 0.5),
        lambda s, p: setattr(s, "seed", 3),
    ],
)
def test_another_thread_is_refused_during_a_step(use, linear, same_bits):
    session, alone = make(linear), make(linear)
    alone.step(linear.batch_of(0))
    errors = []

    def other():
        try:
            use(session, linear)
        except SessionError as error:
            errors.append(str(error))

    def meanwhile():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    session.step(linear.batch_of(0), meanwhile=meanwhile)
    assert errors == [
        "another thread is using the session; use a session from one thread at a time"
    ]
    assert same_bits(session.state(), alone.state())
    other()
    assert len(errors) == 1


def test_steps_of_several_threads_are_made_one_after_another_or_refused(linear, same_bits):
    """No update is lost: those that were reported are those of one thread alone."""
    session, alone = make(linear), make(linear)
    batch = linear.batch_of(0)
    made = []

    def work():
        for _ in range(40):
            try:
                made.append(session.step(batch))
            except SessionError:
                continue

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(report.step for report in made) == list(range(1, len(made) + 1))
    for _ in made:
        alone.step(batch)
    assert same_bits(session.state(), alone.state())


@pytest.mark.parametrize("scale", [4.0, 2.0**-660, 5e-324, 2.0**1023])
def test_micro_batches_of_any_weights_have_the_same_mean(scale, linear):
    session, plain = linear.session(), linear.session()
    batches = [linear.batch_of(0), linear.batch_of(1)]
    assert session.step(batches, weights=[scale, scale]) == plain.step(batches)

"""The guarantees of a session, the same on every device: each test runs on the CPU and on CUDA."""

from __future__ import annotations

import runpy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import sql_resident
import torch
from sql_compact import DomainError, ShapeError
from sql_resident import (
    Constant,
    NonFiniteState,
    OutOfMemory,
    StepReport,
    TrainingSession,
    WarmupCosine,
)

SCRIPT = Path(__file__).parent / "resumed_run.py"
MODELS = runpy.run_path(str(SCRIPT))
REPORTED = ("step", "loss", "grad_norm", "learning_rate")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@dataclass(frozen=True)
class Case:
    """A model on a device in a precision."""

    model: str
    device: str
    precision: str
    compiled: bool | None = None

    def session(self, **options) -> TrainingSession:
        given = {
            "device": self.device,
            "precision": self.precision,
            "compile": self.compiled,
            "on_non_finite": "raise",
        }
        return MODELS["make_session"](self.model, **{**given, **options})

    def batch(self, position: int, second: bool = False) -> dict[str, np.ndarray]:
        return MODELS["batch"](position, self.model, second)

    @property
    def name(self) -> str:
        compiled = "-compiled" if self.compiled else ""
        return f"{self.model}-{self.precision}-{self.device}{compiled}"

    @property
    def rounding(self) -> float:
        """How far losses of one model may lie apart on two devices."""
        return {"float32": 1e-5, "tf32": 1e-3, "bfloat16": 1e-2}[self.precision]


ON_CUDA = [pytest.mark.gpu, needs_cuda]
SLOW = [pytest.mark.slow]
CASES = [
    (Case("words", "cpu", "float32"), []),
    (Case("words", "cpu", "float32", compiled=True), SLOW),
    (Case("gpt", "cpu", "float32"), SLOW),
    (Case("words", "cpu", "bfloat16"), SLOW),
    (Case("words", "cuda", "float32"), ON_CUDA),
    (Case("gpt", "cuda", "float32"), ON_CUDA),
    (Case("gpt", "cuda", "tf32"), ON_CUDA),
    (Case("gpt", "cuda", "bfloat16"), ON_CUDA),
]


@pytest.fixture(
    params=[pytest.param(case, marks=marks, id=case.name) for case, marks in CASES],
    scope="module",
)
def case(request) -> Case:
    return request.param


@dataclass(frozen=True)
class Twins:
    """Two sessions alike; :meth:`fresh` takes both back to their start, nothing compiled anew."""

    sessions: tuple[TrainingSession, TrainingSession]
    start: Path

    def fresh(self, **hyper: float) -> tuple[TrainingSession, TrainingSession]:
        for session in self.sessions:
            session.restore(self.start)
            session.set_hyper(**hyper)
        return self.sessions


@pytest.fixture(scope="module")
def made(case, tmp_path_factory) -> Twins:
    twins = Twins((case.session(), case.session()), tmp_path_factory.mktemp("start") / "0.npz")
    twins.sessions[0].save(twins.start)
    return twins


def advance(session: TrainingSession, case: Case, updates: int) -> list[StepReport]:
    return [session.step(case.batch(session.data_position)) for _ in range(updates)]


def test_two_sessions_give_the_same_bits(case, made, same_bits):
    first, second = made.fresh()
    for _ in range(6):
        assert advance(first, case, 1) == advance(second, case, 1)
        assert same_bits(first.state(), second.state())
    assert first.counters.compilations == 1


def test_a_new_process_resumes_bit_for_bit(case, made, resume_elsewhere, tmp_path):
    session, _ = made.fresh()
    reports = []
    for step in range(6):
        if step in (0, 3, 5):
            session.save(tmp_path / f"{step}.npz")
        (report,) = advance(session, case, 1)
        reports.append((report.step, report.loss, report.grad_norm, report.learning_rate))
    end = session.state()
    how = [case.model, case.device, case.precision, *(["compile"] if case.compiled else [])]
    compiler = tmp_path / "compiler"
    # Nothing that the first process found out about kernels.
    ends = resume_elsewhere(tmp_path, 6, *how, TORCHINDUCTOR_CACHE_DIR=str(compiler))
    assert set(ends) == {0, 3, 5}
    for step, resumed in ends.items():
        columns = zip(REPORTED, resumed["reports"].T, np.array(reports[step:]).T, strict=True)
        differ = {
            name: (np.flatnonzero(own != other), own, other)
            for name, own, other in columns
            if own.tobytes() != other.tobytes()
        }
        arrays = {n for n in end if resumed[n].tobytes() != end[n].tobytes()}
        assert (differ, arrays) == ({}, set()), f"resumed after update {step}"
    # A configuration that won by its time could be another one next time.
    assert list(compiler.rglob("*.best_config")) == []


# --- failures ---------------------------------------------------------------------------


def bad_token(session, case, monkeypatch):
    batch = case.batch(session.data_position)
    batch["tokens"][-1, -1] = 99
    with pytest.raises(DomainError, match="value 99 at"):
        session.step(batch)


def nan_weight(session, case, monkeypatch):
    """One weight turns NaN, as a stray write would do it; it turns back after the failure."""
    weight = session._buffers.published[next(iter(session.weights()))]
    before = weight.clone()
    weight.view(-1)[weight.numel() // 2] = torch.nan
    poisoned = session.state()
    with pytest.raises(NonFiniteState, match="the state is as it was"):
        session.step(case.batch(session.data_position))
    assert {n for n, a in session.state().items() if a.tobytes() != poisoned[n].tobytes()} == set()
    weight.copy_(before)


def overflowing_update(session, case, monkeypatch):
    schedule = session.learning_rate
    session.learning_rate = 1e300
    with pytest.raises(NonFiniteState, match="sum of the new state is"):
        session.step(case.batch(session.data_position))
    session.learning_rate = schedule


def failed_device(session, case, monkeypatch):
    """The device reports an error after it has written all it writes in a step."""
    finish = sql_resident.engine.StepEngine.finish

    def failing(self):
        finish(self)
        raise RuntimeError("device lost")

    with monkeypatch.context() as patched:
        patched.setattr(sql_resident.engine.StepEngine, "finish", failing)
        with pytest.raises(RuntimeError, match="device lost"):
            session.step(case.batch(session.data_position))


@pytest.mark.parametrize("fail", [bad_token, nan_weight, overflowing_update, failed_device])
def test_a_failed_step_changes_nothing(fail, case, made, same_bits, monkeypatch):
    session, never_failed = made.fresh()
    for _ in range(3):  # reads and writes each of the two state buffers in turn
        before = session.state()
        place = (session.step_count, session.data_position, session.learning_rate)
        fail(session, case, monkeypatch)
        assert same_bits(session.state(), before)
        assert place == (session.step_count, session.data_position, session.learning_rate)
        assert advance(session, case, 1) == advance(never_failed, case, 1)
        assert same_bits(session.state(), never_failed.state())
    assert session.counters.compilations == 1


def test_an_interrupt_anywhere_in_a_step_leaves_the_old_state_or_the_new_one(
    case, made, same_bits, interrupted_at_line
):
    """At every third line of a step, so that the device is at work in some of them."""
    session, clean = made.fresh()
    states = [clean.state()]
    for _ in range(3):
        advance(clean, case, 1)
        states.append(clean.state())
    advance(session, case, 1)
    updates = set()
    for place in range(1, 1000, 3):
        step = session.step_count
        batch = case.batch(step)
        finished = not interrupted_at_line(place, session.step, batch)
        updates.add((finished, session.step_count - step))
        assert same_bits(session.state(), states[session.step_count])
        if finished:
            break
        if session.step_count > step:
            session.restore(made.start)
            advance(session, case, 1)
    assert {(False, 0), (True, 1)} <= updates <= {(False, 0), (False, 1), (True, 1)}


@needs_cuda
@pytest.mark.gpu
def test_out_of_memory_on_the_device_is_an_error_with_the_need(linear, same_bits):
    rows = 1 << 22
    session = linear.session(
        device="cuda", precision="float32", batch_shapes=[{"x": (rows, 3), "y": (rows,)}]
    )
    session.step(linear.batch_of(0))
    before = session.state()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**22) / total)
    try:
        with pytest.raises(OutOfMemory, match=r"does not fit on cuda.*needs about \d+ MiB"):
            session.step(linear.batch_of(1, rows=rows))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert same_bits(session.state(), before)
    session.step(linear.batch_of(1, rows=rows))
    session.step(linear.batch_of(2))
    assert session.step_count == 3


# --- one compilation --------------------------------------------------------------------


def test_scalars_and_tokens_compile_nothing(case, made):
    session, other = made.fresh()
    advance(session, case, 2)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    losses = set()
    for position in range(5):
        session.learning_rate = 0.01 / (1 + position)
        session.seed = position
        session.set_hyper(dropout=0.1 * position)
        losses.add(session.step(case.batch(position)).loss)
    session.learning_rate = WarmupCosine(peak=0.1, floor=0.01, warmup=2, total=9)
    session.restore(made.start)
    assert advance(session, case, 2) == advance(other, case, 2)
    assert len(losses) == 5
    assert session.counters.compilations == 1
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


def test_steady_steps_upload_a_batch_and_read_three_numbers(case, made):
    session, _ = made.fresh()
    advance(session, case, 2)
    before = session.counters
    advance(session, case, 10)
    uploaded = sum(array.nbytes for array in case.batch(0).values()) + 4 * 8
    assert session.counters == before.plus(steps=10, scalars_read=30, bytes_uploaded=10 * uploaded)


def test_changing_a_scalar_takes_effect(case, made):
    batch = case.batch(0)

    def loss(**hyper: float) -> float:
        return made.fresh(**hyper)[0].step(batch).loss

    assert loss(dropout=0.3) == loss(dropout=0.3)
    assert loss(dropout=0.3) != loss(dropout=0.0)
    session, _ = made.fresh()
    session.seed = 43
    assert session.step(batch).loss != loss(dropout=0.3)


# --- what has no effect on training ------------------------------------------------------


def test_looking_has_no_effect(case, made, same_bits):
    session, other = made.fresh()
    for position in range(4):
        batch = case.batch(position)
        value = session.evaluate(case.batch(50))
        assert value == session.evaluate(case.batch(50))
        session.evaluate(case.batch(50), ema=True)
        session.gradients(batch)
        session.sql(f"SELECT SUM(val) AS val FROM {next(iter(session.weights()))}").to_arrow()
        session.dataset(ema=True)
        assert session.step(batch) == other.step(batch)
    assert same_bits(session.state(), other.state())


def test_what_was_looked_at_stays_as_it_was(case, made, same_bits):
    session, _ = made.fresh()
    advance(session, case, 2)
    name = next(iter(session.weights()))
    dims = ", ".join(session.dataset()[name].dims)
    rows = session.sql(f"SELECT {dims}, val FROM {name}")
    on_device = session.sql(f"SELECT {dims}, 2.0 * val AS val FROM {name}_m").to_torch()["val"]
    kept = [session.state(), session.weights(ema=True), session.gradients(case.batch(9))]
    copies = [{n: a.copy() for n, a in group.items()} for group in kept]
    later = on_device.clone()
    advance(session, case, 4)  # every buffer is written again
    assert all(map(same_bits, kept, copies))
    assert on_device.device.type == case.device
    assert torch.equal(on_device, later)
    np.testing.assert_array_equal(later.cpu().numpy(), 2.0 * copies[0][f"{name}.m"])
    found = rows.to_dataset()["val"].transpose(*dims.split(", ")).values
    np.testing.assert_array_equal(found, copies[0][name])
    assert not same_bits(session.state(), copies[0])


# --- other shapes, micro-batches, other devices ------------------------------------------


def test_a_declared_second_shape_is_a_program_of_its_own(case, same_bits):
    sessions = [case.session() for _ in range(2)]
    for session in sessions:
        session.step(case.batch(0, second=True))
        session.step(case.batch(1))
        session.step(case.batch(2, second=True))
        assert session.counters.compilations == 2
    assert same_bits(sessions[0].state(), sessions[1].state())
    session = sessions[0]
    session.set_hyper(dropout=0.0)
    small = case.batch(3, second=True)
    expected = session.evaluate(small)
    assert session.step(small).loss == pytest.approx(expected, rel=case.rounding)
    with pytest.raises(ShapeError, match="declared"):
        session.step({name: array[:1] for name, array in small.items()})


def test_micro_batches_give_the_same_bits_and_one_large_batchs_update(case, same_bits):
    if case.model != "words" and case.device == "cuda":
        pytest.skip("two more programs to compile; the small model goes through the same code")
    large = case.batch(0)
    half = len(large["tokens"]) // 2
    parts = [{n: a[:half] for n, a in large.items()}, {n: a[half:] for n, a in large.items()}]
    sessions = [case.session(hyper={"dropout": 0.0}) for _ in range(3)]
    reports = [session.step(parts, weights=[half, half]) for session in sessions[:2]]
    assert reports[0] == reports[1]
    assert same_bits(sessions[0].state(), sessions[1].state())
    single = sessions[2].step(large)
    assert reports[0].loss == pytest.approx(single.loss, rel=case.rounding)
    assert reports[0].grad_norm == pytest.approx(single.grad_norm, rel=10 * case.rounding)


def test_a_checkpoint_goes_on_on_a_cpu(case, made, same_bits, tmp_path):
    session, _ = made.fresh()
    advance(session, case, 2)
    session.save(tmp_path / "state.npz")
    moved = case.session(device="cpu", learning_rate=Constant(0.5))
    moved.restore(tmp_path / "state.npz")
    assert same_bits(moved.state(), session.state())
    assert (moved.step_count, moved.learning_rate) == (2, session.learning_rate)
    # The same dropout masks too, so that the losses agree.
    (here,), (there,) = advance(moved, case, 1), advance(session, case, 1)
    assert here.loss == pytest.approx(there.loss, rel=case.rounding)
    moved.save(tmp_path / "back.npz")
    session.restore(tmp_path / "back.npz")
    assert same_bits(session.state(), moved.state())


@pytest.mark.slow
def test_a_process_may_compile_as_many_sessions_as_it_likes():
    losses = {MODELS["make_session"](compile=True).step(MODELS["batch"](0)).loss for _ in range(12)}
    assert len(losses) == 1

"""Checkpoints of sessions: exact resume, all or nothing, and weights in other formats."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from sql_resident import (
    NANOGPT,
    AdamW,
    BatchInput,
    CheckpointError,
    CheckpointFolder,
    Constant,
    SessionError,
    TrainingSession,
    WarmupCosine,
    export_safetensors,
    import_safetensors,
)
from sql_resident.checkpoint import load, make_checkpoint, save
from sql_resident.gpt import TABLE_DIMS, GPTConfig, initial_weights, loss_sql

SCRIPT = Path(__file__).parent / "resumed_run.py"
MODEL = runpy.run_path(str(SCRIPT))
TOTAL = 20


def test_twenty_interruption_points_resume_bit_for_bit_in_a_new_process(resume_elsewhere, tmp_path):
    make_session, batch, run_to = MODEL["make_session"], MODEL["batch"], MODEL["run_to"]
    session = make_session()
    reports = []
    for step in range(TOTAL):
        session.save(tmp_path / f"{step}.npz")
        report = session.step(batch(session.data_position))
        reports.append((report.step, report.loss, report.grad_norm, report.learning_rate))
    end = run_to(session, TOTAL)
    ends = resume_elsewhere(tmp_path, TOTAL)
    assert set(ends) == set(range(TOTAL))
    for step, resumed in ends.items():
        assert resumed["reports"].tobytes() == np.array(reports[step:]).tobytes()
        for name, array in end.items():
            if name != "reports":
                assert resumed[name].tobytes() == array.tobytes(), (step, name)


def test_a_skipped_batch_is_not_met_again_after_resuming(linear, same_bits, tmp_path):
    session = linear.session(on_non_finite="skip")
    bad = linear.batch_of(0)
    bad["y"][0] = 1e200
    session.step(bad)
    session.step(linear.batch_of(1))
    session.save(tmp_path / "state.npz")
    resumed = linear.session(on_non_finite="skip")
    resumed.restore(tmp_path / "state.npz")
    assert (resumed.step_count, resumed.data_position) == (1, 2)
    assert session.step(linear.batch_of(2)) == resumed.step(linear.batch_of(2))


def test_everything_but_the_code_is_restored(embedding, tmp_path):
    schedule = WarmupCosine(peak=0.3, floor=0.1, warmup=2, total=9)
    session = embedding.session(learning_rate=schedule, hyper={"dropout": 0.25}, seed=2**40 + 1)
    session.step(embedding.batch_of(0))
    session.set_hyper(dropout=0.5)
    session.save(tmp_path / "state.npz", {"validation_loss": 1.5})
    other = embedding.session(hyper={"dropout": 0.0})
    other.restore(tmp_path / "state.npz")
    assert (other.seed, other.learning_rate) == (2**40 + 1, schedule)
    assert (other.hyper, other.step_count) == ({"dropout": 0.5}, 1)
    manifest = load(tmp_path / "state.npz").manifest
    assert manifest.metrics["validation_loss"] == 1.5
    assert manifest.configuration["optimizer"]["kind"] == "sgd"


def changed(path: Path, arrays=None, **manifest):
    """Write the checkpoint at ``path`` again with other content, its digests right."""
    old = load(path)
    fields = ("step", "seed", "data_position", "schedule", "configuration", "sql_hash")
    values = {name: getattr(old.manifest, name) for name in fields} | manifest
    save(path, make_checkpoint({**old.arrays, **(arrays or {})}, **values))


WRONG = {
    "another shape": ({"arrays": {"w": np.zeros(4)}}, "w: file float64.4., expected float64.3."),
    "another dtype": ({"arrays": {"w": np.zeros(3, np.float32)}}, "w: file float32.3."),
    "another array": ({"arrays": {"v": np.zeros(3)}}, "v: file float64.3., expected none"),
    "another step": ({"sql_hash": "0" * 64}, "hash of the step's SQL: file 000"),
    "other scalars": ({"configuration": {"hyper": {"p": 1.0}}}, r"scalars of hyper are \['p'\]"),
    "no scalars": ({"configuration": None}, "scalars of hyper are None"),
    "a scalar that is no number": ({"configuration": {"hyper": {"z": "a"}}}, "z is 'a'"),
    "an unknown schedule": ({"schedule": {"kind": "mine"}}, "neither the session's nor one"),
    "no position": ({"data_position": None}, "data position is None"),
    "a position before its step": ({"data_position": 0}, "data position is 0"),
    "a position that is a truth value": ({"step": 0, "data_position": True}, "position is True"),
    "a step beyond a session's": ({"step": 2**63, "data_position": 2**63}, "its step is 92233720"),
    "a position beyond a session's": ({"data_position": 2**63}, "its position is 92233720"),
    "a seed beyond a session's": ({"seed": 2**63}, "its seed is 92233720"),
    "a weight that is NaN": (
        {"arrays": {"w": np.array([0.0, np.nan, 0.0])}},
        "the array 'w' has values that are not finite",
    ),
    "an infinite moment": (
        {"arrays": {"w.v": np.array([0.0, np.inf, 0.0])}},
        "the array 'w.v' has values that are not finite",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_checkpoint_that_does_not_fit_changes_nothing(case, linear, same_bits, tmp_path):
    options = {"optimizer": AdamW(), "hyper": {"z": 0.5}}
    source, session = linear.session(**options), linear.session(**options, learning_rate=0.7)
    source.step(linear.batch_of(5))
    source.save(tmp_path / "state.npz")
    session.step(linear.batch_of(0))
    before = (session.state(), session.step_count, session.learning_rate, session.hyper)
    change, message = WRONG[case]
    changed(tmp_path / "state.npz", **change)
    with pytest.raises(CheckpointError, match=message):
        session.restore(tmp_path / "state.npz")
    assert same_bits(session.state(), before[0])
    assert (session.step_count, session.learning_rate, session.hyper) == before[1:]


def test_an_optimizer_with_other_numbers_is_another_step(linear, tmp_path):
    linear.session(optimizer=AdamW(eps=1e-8)).save(tmp_path / "state.npz")
    with pytest.raises(CheckpointError, match="hash of the step's SQL"):
        linear.session(optimizer=AdamW(eps=1e-7)).restore(tmp_path / "state.npz")


class MySchedule:
    """A user's own schedule."""

    def __call__(self, step):
        return 1.0 / (1 + step)

    def to_json(self):
        return {"kind": "harmonic"}


def test_a_users_schedule_is_restored_into_a_session_that_has_it(linear, tmp_path):
    session = linear.session(learning_rate=MySchedule())
    session.step(linear.batch_of(0))
    session.save(tmp_path / "state.npz")
    other = linear.session(learning_rate=MySchedule())
    other.restore(tmp_path / "state.npz")
    assert session.step(linear.batch_of(1)) == other.step(linear.batch_of(1))
    with pytest.raises(CheckpointError, match="neither the session's"):
        linear.session(learning_rate=Constant(0.1)).restore(tmp_path / "state.npz")


def test_an_interrupt_while_restoring_changes_nothing(linear, same_bits, tmp_path, monkeypatch):
    source, session = linear.session(optimizer=AdamW()), linear.session(optimizer=AdamW())
    source.step(linear.batch_of(1))
    source.save(tmp_path / "state.npz")
    before = session.state()
    copies = iter([torch.Tensor.to])

    def interrupted(self, *args, **kwargs):
        if kwargs.get("copy"):
            if not (first := next(copies, None)):
                raise KeyboardInterrupt
            return first(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    original = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.restore(tmp_path / "state.npz")
    monkeypatch.undo()
    assert same_bits(session.state(), before)
    assert session.step_count == 0


def test_a_folder_keeps_checkpoints_of_a_session(linear, same_bits, tmp_path):
    folder = CheckpointFolder(tmp_path / "run", keep_last=1, best="validation_loss")
    session, states = linear.session(), {}
    for position, loss in enumerate([3.0, 1.0, 2.0]):
        session.step(linear.batch_of(position))
        states[session.step_count] = session.state()
        folder.save(session.checkpoint({"validation_loss": loss}))
    assert folder.steps() == (2, 3)
    other = linear.session()
    other.restore(folder.best())
    assert same_bits(other.state(), states[2])
    other.restore(folder.latest())
    assert same_bits(other.state(), states[3])


def gpt_session(seed: int) -> TrainingSession:
    import xarray as xr

    config = GPTConfig(layers=1, heads=2, width=8, context=4, vocabulary=7, dropout=0.2)
    tokens = BatchInput(("b", "t"), (2, 4), column="token", domain=7)
    weights = initial_weights(config, seed)
    return TrainingSession(
        loss=loss_sql(config),
        parameters={n: xr.DataArray(weights[n], dims=d) for n, d in TABLE_DIMS.items()},
        batch={"tokens": tokens, "targets": tokens},
        optimizer=AdamW(),
        hyper={"dropout": config.dropout},
        ema_decay=0.5,
    )


def test_weights_travel_as_safetensors_and_as_nanogpt_parameters(same_bits, tmp_path):
    session = gpt_session(seed=1)
    other = gpt_session(seed=2)
    rng = np.random.default_rng(0)
    batch = {n: rng.integers(0, 7, (2, 4)) for n in ("tokens", "targets")}
    session.step(batch)
    export_safetensors(tmp_path / "w.safetensors", session.weights())
    other.set_weights(import_safetensors(tmp_path / "w.safetensors", other.weight_specs))
    assert same_bits(other.weights(), session.weights())
    assert same_bits(other.weights(ema=True), session.weights())
    parameters = NANOGPT.to_external(session.weights(ema=True))
    assert parameters["transformer.h.0.attn.c_attn.weight"].shape == (24, 8)
    state_dict = {name: torch.from_numpy(array) for name, array in parameters.items()}
    other.set_weights(NANOGPT.from_external(state_dict, other.weight_specs))
    assert same_bits(other.weights(), session.weights(ema=True))
    assert other.evaluate(batch) == session.evaluate(batch, ema=True)


def test_weights_of_another_model_are_refused(linear, mlp, tmp_path):
    export_safetensors(tmp_path / "w.safetensors", mlp.session().weights())
    session = linear.session()
    with pytest.raises(CheckpointError, match="holds another model's weights"):
        import_safetensors(tmp_path / "w.safetensors", session.weight_specs)
    with pytest.raises(SessionError, match="weights: missing"):
        session.set_weights(mlp.session().weights())

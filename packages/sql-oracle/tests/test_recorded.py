"""The reference model against recorded runs of the original nanoGPT, and their reader."""

import numpy as np
import pytest
import torch
from sql_oracle import (
    GPT,
    AdamWOptions,
    GPTConfig,
    MissingFile,
    TorchTrainer,
    decay_matrices,
    difference,
    precision_policy,
    warmup_cosine,
)
from sql_oracle.recorded import (
    BETAS,
    CLIP_NORM,
    ENVIRONMENT_VARIABLE,
    EPS,
    FULL_SUMMARY,
    KINDS,
    SMALL_RUN,
    WEIGHT_DECAY,
    Summary,
    initial_weights,
    nanogpt_shapes,
    read_run,
    recorded_folder,
)


def trainer_for(run) -> TorchTrainer:
    model = GPT(run.config).to(torch.float64)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(run.initial[name]))
    return TorchTrainer(
        model,
        loss=lambda module, batch: module(**batch),
        optimizer=AdamWOptions(BETAS, EPS, decay_matrices(WEIGHT_DECAY)),
        clip_norm=CLIP_NORM,
        learning_rate=warmup_cosine(1e-3, 1e-4, 100, 5000),
        precision=precision_policy("float64"),
    )


def test_the_reference_reproduces_every_array_of_the_recorded_small_run(recorded):
    run = read_run(recorded / SMALL_RUN)
    trainer = trainer_for(run)
    for number, step in enumerate(run.steps):
        assert trainer.learning_rate(number) == pytest.approx(step.learning_rate, rel=1e-15)
        assert trainer.backward(step.batch) == pytest.approx(step.loss, rel=1e-13)
        found = {"grad": trainer.gradients()}
        assert trainer.update() == pytest.approx(step.grad_norm, rel=1e-12)
        slots = trainer.slots()
        found |= {"weight": trainer.weights(), "exp_avg": slots["m"], "exp_avg_sq": slots["v"]}
        for kind in KINDS:
            assert set(found[kind]) == set(step.arrays[kind])
            for name, array in found[kind].items():
                error = difference(array, step.arrays[kind][name]).norm
                assert error < 1e-12, (number, kind, name)


def test_initial_weights_follow_from_the_seed(recorded):
    run = read_run(recorded / SMALL_RUN)
    drawn = initial_weights(run.config, run.seed)
    assert all(np.array_equal(drawn[name], run.initial[name]) for name in run.names)


def test_recorded_arrays_as_tables(recorded):
    run = read_run(recorded / SMALL_RUN)
    tables = run.tables(0, "grad")
    assert tables["attn_qkv"].shape == (2, 3, 2, 16, 32)
    assert run.initial_tables()["wte"].shape == (65, 32)


def test_a_summary_has_no_whole_arrays(recorded):
    run = read_run(recorded / FULL_SUMMARY)
    assert run.config == GPTConfig()
    assert run.config.parameters == 10_745_088
    assert isinstance(run.steps[0].arrays["grad"]["transformer.wte.weight"], Summary)
    with pytest.raises(MissingFile, match="summary"):
        run.tables(0, "grad")


@pytest.mark.slow
def test_the_reference_reproduces_the_first_step_of_the_full_size_summary(recorded):
    run = read_run(recorded / FULL_SUMMARY)
    trainer = trainer_for(run)
    step = run.steps[0]
    assert trainer.backward(step.batch) == pytest.approx(step.loss, rel=1e-12)
    for name, array in trainer.gradients().items():
        assert step.arrays["grad"][name].error(array) < 1e-11, name
    assert trainer.update() == pytest.approx(step.grad_norm, rel=1e-11)
    for name, array in trainer.weights().items():
        assert step.arrays["weight"][name].error(array) < 1e-12, name


def small_file(path):
    """A run of one step in the recorded layout, with made-up numbers."""
    config = GPTConfig(layers=1, heads=1, width=2, context=3, vocabulary=4)
    arrays = {
        "config": np.array([1, 1, 2, 3, 1, 1, 9, 0, 4]),
        "step0/lr": np.float64(0.5),
        "step0/loss": np.float64(1.5),
        "step0/grad_norm": np.float64(2.5),
        "step0/tokens": np.array([[0, 1, 2]], np.int32),
        "step0/targets": np.array([[1, 2, 3]], np.int32),
    }
    for name, shape in nanogpt_shapes(config).items():
        arrays[f"init/{name}"] = np.zeros(shape)
        for number, kind in enumerate(KINDS):
            arrays[f"step0/{kind}/{name}"] = np.full(shape, float(number))
    np.savez(path, **arrays)
    return arrays


def test_reading_a_file(tmp_path):
    small_file(tmp_path / "run.npz")
    run = read_run(tmp_path / "run.npz")
    assert run.config == GPTConfig(layers=1, heads=1, width=2, context=3, vocabulary=4)
    assert (run.batch_size, run.seed, len(run.steps)) == (1, 9, 1)
    assert run.steps[0].batch["targets"].dtype == np.int64
    assert np.all(run.tables(0, "exp_avg")["mlp_in"] == 2.0)


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(MissingFile, match=r"absent\.npz"):
        read_run(tmp_path / "absent.npz")
    (tmp_path / "text.npz").write_text("not an archive")
    with pytest.raises(MissingFile, match=r"text\.npz"):
        read_run(tmp_path / "text.npz")
    arrays = small_file(tmp_path / "whole.npz")
    del arrays["step0/loss"]
    np.savez(tmp_path / "part.npz", **arrays)
    with pytest.raises(MissingFile, match="step0/loss"):
        read_run(tmp_path / "part.npz")


def test_the_folder_comes_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    assert recorded_folder() is None
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path))
    assert recorded_folder() == tmp_path
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(MissingFile, match=ENVIRONMENT_VARIABLE):
        recorded_folder()


def test_a_summarys_error_sees_the_norm_and_the_sample():
    array = np.arange(1.0, 7.0).reshape(2, 3)
    summary = Summary(float(np.linalg.norm(array)), np.array([1, 4]), array.ravel()[[1, 4]])
    assert summary.error(array) == 0.0
    assert summary.error(array * 1.01) == pytest.approx(0.01)
    moved = array.copy()
    moved[1, 1] *= -1
    assert summary.error(moved) > 1.0

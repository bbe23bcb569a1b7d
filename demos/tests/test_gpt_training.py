"""The Shakespeare demo end to end at a tiny size, against PyTorch."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from gpt_reference import reference_loss
from shakespeare_gpt.batches import BatchSource, Stream
from shakespeare_gpt.cli import main, parse
from shakespeare_gpt.data import VOCABULARY, encode, split
from shakespeare_gpt.sampling import SQLModel
from shakespeare_gpt.training import build_session
from sql_resident.gpt import initial_weights, is_matrix

DEMO = Path(__file__).parents[1] / "03_shakespeare.py"
SIZES = ["--layers", "1", "--heads", "2", "--width", "8", "--context", "8", "--batch", "3"]
SHORT = ["--eval-batches", "2", "--sample-length", "3", "--device", "cpu"]


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text((VOCABULARY + "To be, or not to be: that is the question.\n") * 10)
    return path


def run(text: Path, output: Path, *arguments: str) -> list[dict]:
    flags = [*SIZES, *SHORT, "--data", str(text), "--output", str(output), *arguments]
    assert main(flags) == 0
    lines = (output / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def losses(records: list[dict]) -> list[float]:
    return [record["loss"] for record in records if record["event"] == "update"]


def test_five_steps_make_five_updates_and_leave_all_outputs(text, tmp_path, capsys):
    records = run(text, tmp_path, "--steps", "5")
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5]
    assert np.all(np.isfinite(losses(records)))
    rates = [record["learning_rate"] for record in records]
    assert rates == pytest.approx([1e-3 * (step + 1) / 101 for step in range(5)], rel=1e-12)
    assert (tmp_path / "loss.png").stat().st_size > 0
    assert len((tmp_path / "sample.txt").read_text()) == 3
    printed = capsys.readouterr().out
    for record in records:
        assert f"loss of update {record['step']}: {record['loss']!r}" in printed
    assert "parameters" in printed and "peak memory" in printed and str(text) in printed


def test_same_command_gives_the_same_losses(text, tmp_path):
    first, second = (run(text, tmp_path / name, "--steps", "3") for name in "ab")
    assert losses(first) == losses(second)
    other = run(text, tmp_path / "c", "--steps", "3", "--seed", "2")
    assert losses(other) != losses(first)


def test_resumed_run_equals_the_uninterrupted_one(text, tmp_path):
    whole = run(text, tmp_path / "whole", "--steps", "4")
    state = str(tmp_path / "state")
    run(text, tmp_path / "part", "--steps", "2", "--checkpoint", state)
    resumed = run(text, tmp_path / "part", "--steps", "4", "--resume", state)
    assert losses(resumed) == losses(whole)


def test_evaluations_come_at_the_interval_and_before_the_first_update_when_asked(text, tmp_path):
    records = run(text, tmp_path, "--steps", "5", "--eval-interval", "2", "--eval-at-start")
    steps = [record["step"] for record in records if record["event"] == "evaluation"]
    assert steps == [0, 2, 4]


def test_training_equals_pytorch(text):
    settings = parse([*SIZES, "--data", str(text), "--device", "cpu", "--precision", "float64"])
    config = settings.model
    weights = {n: w.astype(np.float64) for n, w in initial_weights(config, 5).items()}
    session = build_session(settings, weights)
    parts = split(encode(text.read_text()), config.context)
    source = BatchSource(*parts, settings.batch, config.context, settings.seed)

    tensors = {name: torch.tensor(w, requires_grad=True) for name, w in weights.items()}
    groups = [
        {"params": [tensor], "weight_decay": 0.1 if is_matrix(name) else 0.0}
        for name, tensor in tensors.items()
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99), eps=1e-8)
    for step in range(4):
        batch = source.draw(Stream.UPDATE, step)
        loss = reference_loss(
            config, tensors, batch["tokens"], batch["targets"], seed=settings.seed, step=step
        )
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(tensors.values(), 1.0).item()
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (step + 1) / 101
        optimizer.step()
        report = session.step(batch)
        assert report.loss == pytest.approx(loss.item(), rel=1e-11)
        assert report.grad_norm == pytest.approx(norm, rel=1e-11)
    state = session.state()
    for name, tensor in tensors.items():
        np.testing.assert_allclose(state[name], tensor.detach().numpy(), rtol=1e-9, atol=1e-12)


def test_sampling_model_is_the_trained_one(text):
    config = parse(SIZES).model
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=shape) for name, shape in config.table_shapes.items()}
    model = SQLModel(config, weights, precision="float64")
    # Longer than the context: only the last `context` tokens count.
    tokens = rng.integers(0, config.vocabulary, size=config.context + 3)
    found = torch.log_softmax(torch.from_numpy(model(tokens)), dim=0)
    tensors = {name: torch.from_numpy(values) for name, values in weights.items()}
    plain = parse([*SIZES, "--dropout", "0"]).model
    window = tokens[None, -config.context :]

    def total(last: int) -> float:
        targets = np.append(window[:, 1:], [[last]], axis=1)
        loss = reference_loss(plain, tensors, window, targets, seed=0, step=0)
        return -config.context * loss.item()

    for token in (0, 7, 64):
        difference = total(token) - total(1)
        assert difference == pytest.approx((found[token] - found[1]).item(), rel=1e-9, abs=1e-9)


def test_ctrl_c_leaves_a_checkpoint_that_goes_on(text, tmp_path):
    """The process is interrupted in its middle, long before its first evaluation."""
    state, output = tmp_path / "state.npz", tmp_path / "output"
    flags = [*SIZES, *SHORT, "--data", str(text), "--output", str(output)]
    command = [sys.executable, str(DEMO), *flags, "--steps", "1000000"]
    process = subprocess.Popen(
        [*command, "--eval-interval", "1000000", "--checkpoint", str(state)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A process that was started in the background ignores the signal otherwise.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    metrics = output / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130, printed
    assert f"checkpoint: {state}" in printed and "Traceback" not in printed
    made = len(metrics.read_text().splitlines())
    records = run(text, output, "--steps", str(made + 2), "--resume", str(state))
    assert [record["step"] for record in records] == list(range(1, made + 3))


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("absent/state.npz", "there is no folder"),
        ("text.txt/state.npz", "there is no folder"),
        ("", "is a folder; name a file in it"),
    ],
)
def test_a_checkpoint_that_cannot_be_written_is_refused_before_any_update(
    place, message, text, tmp_path, capsys
):
    flags = [*SIZES, *SHORT, "--data", str(text), "--output", str(tmp_path)]
    assert main([*flags, "--checkpoint", str(text.parent / place)]) == 1
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["metrics.jsonl", "loss.png", "sample.txt"])
def test_an_output_that_cannot_be_written_is_one_line(name, text, tmp_path, capsys):
    (tmp_path / name).mkdir()
    flags = [*SIZES, *SHORT, "--data", str(text), "--output", str(tmp_path), "--steps", "1"]
    assert main(flags) == 1
    assert f"error: cannot write {tmp_path / name}" in capsys.readouterr().err

"""The Shakespeare demo's command line, records, plot and sample, apart from training itself."""

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib import image
from shakespeare_gpt.cli import main, parse
from shakespeare_gpt.errors import ConfigError, DemoError
from shakespeare_gpt.metrics import open_metrics
from shakespeare_gpt.plots import plot_losses
from shakespeare_gpt.sampling import draw_token
from shakespeare_gpt.settings import Settings, default_precision
from shakespeare_gpt.training import RECIPE_SCHEDULE
from sql_resident.gpt import GPTConfig


def test_no_flags_mean_the_recipe():
    settings = parse([])
    assert settings == Settings()
    assert settings.model == GPTConfig()
    assert (settings.batch, settings.steps) == (12, 5000)
    assert (settings.eval_interval, settings.eval_batches) == (250, 200)
    assert not settings.eval_at_start


def test_flags_change_what_they_name_only():
    sizes = ["--layers", "2", "--heads", "3", "--width", "48", "--context", "32", "--dropout", "0"]
    others = ["--steps", "5", "--max-time", "7", "--no-compile", "--data", "a.txt"]
    assert parse([*sizes, *others]) == Settings(
        model=GPTConfig(layers=2, heads=3, width=48, context=32, dropout=0.0),
        steps=5,
        max_seconds=7.0,
        compile=False,
        data=Path("a.txt"),
    )


def test_precision_follows_the_device():
    assert default_precision("cpu") == "float32"
    assert default_precision("cuda:1") == "tf32"
    assert Settings(device="cuda:1").precision == "tf32"
    assert Settings(device="cuda:1", precision="bfloat16").precision == "bfloat16"


@pytest.mark.parametrize(
    "values, message",
    [
        ({"batch": 0}, "--batch must be at least 1"),
        ({"eval_interval": 0}, "--eval-interval must be at least 1"),
        ({"seed": -1}, "--seed must be at least 0"),
        ({"max_seconds": -1.0}, "--max-time must be at least 0"),
        ({"data_sha256": "0" * 64}, "give both"),
    ],
)
def test_illegal_settings_are_errors(values, message):
    with pytest.raises(ConfigError, match=message):
        Settings(**values)


def test_illegal_flag_ends_with_the_usage(capsys):
    with pytest.raises(SystemExit) as stop:
        parse(["--width", "5"])
    assert stop.value.code == 2
    assert "width 5 cannot be split evenly over 6 heads" in capsys.readouterr().err


def test_errors_end_with_status_one_and_no_traceback(tmp_path, capsys):
    arguments = ["--data", str(tmp_path / "missing.txt"), "--output", str(tmp_path / "run")]
    assert main(arguments) == 1
    assert capsys.readouterr().err.startswith("error: cannot read the text")


def test_schedule_is_the_recipe():
    rates = [RECIPE_SCHEDULE(step) for step in (0, 99, 100, 2550, 5000)]
    assert rates == pytest.approx([1e-3 / 101, 1e-3 * 100 / 101, 1e-3, 5.5e-4, 1e-4], rel=1e-12)


def update(step: int, loss: float = 4.0) -> dict[str, float]:
    return {"step": step, "loss": loss, "grad_norm": 1.0, "learning_rate": 1e-3, "seconds": 0.1}


def test_metrics_are_one_object_a_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with open_metrics(path, first_step=0) as metrics:
        metrics.update(**update(1))
        assert json.loads(path.read_text()) == {"event": "update", **update(1)}
        metrics.evaluation(step=1, training_loss=4.1, validation_loss=4.2, seconds=1.0)
    events = [json.loads(line)["event"] for line in path.read_text().splitlines()]
    assert events == ["update", "evaluation"]


def test_resumed_metrics_keep_what_came_before(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with open_metrics(path, first_step=0) as metrics:
        for step in (1, 2, 3):
            metrics.update(**update(step))
    with open_metrics(path, first_step=2) as metrics:
        assert [record["step"] for record in metrics.updates] == [1, 2]
        metrics.update(**update(3, loss=3.5))
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(record["step"], record["loss"]) for record in records] == [(1, 4), (2, 4), (3, 3.5)]
    with open_metrics(path, first_step=0) as metrics:
        assert metrics.updates == []


def test_foreign_metrics_file_is_an_error(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("not JSON\n")
    with pytest.raises(DemoError, match="is not a metrics file"), open_metrics(path, first_step=1):
        pass


def test_plot_shows_the_losses(tmp_path):
    updates = [update(step, loss=4.0 / step) for step in range(1, 6)]
    plain, evaluated = tmp_path / "plain.png", tmp_path / "evaluated.png"
    plot_losses(plain, updates, [])
    evaluation = {"step": 5, "training_loss": 1.0, "validation_loss": 1.5, "seconds": 0.0}
    plot_losses(evaluated, updates, [evaluation])
    pictures = [image.imread(path) for path in (plain, evaluated)]
    assert all(picture.shape == (600, 960, 4) for picture in pictures)
    assert all((picture[..., :3] < 1).any() for picture in pictures)
    assert not np.array_equal(*pictures)


def test_drawn_tokens_follow_the_softmax():
    logits = np.log([0.1, 0.6, 0.3]) * 0.5 + 700.0
    draws = [
        draw_token(logits, temperature=0.5, seed=1, position=position) for position in range(2000)
    ]
    # Five standard errors of a share of 2,000 draws.
    shares = np.bincount(draws, minlength=3) / 2000
    assert np.abs(shares - [0.1, 0.6, 0.3]).max() < 5 * 0.5 / 2000**0.5
    again = draw_token(logits, temperature=0.5, seed=1, position=7)
    assert again == draws[7]

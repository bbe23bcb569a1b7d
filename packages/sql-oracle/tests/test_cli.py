"""The command's exit status, output, records, and messages about bad requests."""

import json

import numpy as np
import pytest
from sql_oracle import GPTConfig, MissingFile, OracleError, cli, sessions
from sql_oracle.batches import text_batches

SIZES = [
    *("--layers", "2", "--heads", "2", "--width", "8", "--context", "6", "--vocabulary", "11"),
    *("--batch", "2", "--seed", "7"),
]


@pytest.fixture
def session_of_the_case(gpt_case, monkeypatch):
    """Let the command build the tests' own session."""
    made = []

    def build(recipe, loss_sql, *, precision, device, compiled=None, checkpoint=None):
        assert recipe.config == gpt_case.config
        case = gpt_case.but(precision=precision, dropout=recipe.dropout, seed=recipe.seed)
        session = case.session()
        session._learning_rate = cli.warmup_cosine(
            recipe.peak, recipe.floor, recipe.warmup, recipe.total
        )
        made.append(session)
        return session

    monkeypatch.setattr(cli, "build_session", build)
    monkeypatch.setattr(cli, "default_loss_sql", lambda: lambda config: "SELECT 1 AS loss")
    return made


def run(*arguments: str) -> int:
    return cli.main(list(arguments))


def test_a_check_that_passes(session_of_the_case, tmp_path, capsys):
    record = tmp_path / "r.json"
    arguments = ("--steps", "2", "--precision", "float64", "--json", str(record))
    assert run("check", *SIZES, *arguments) == 0
    shown = capsys.readouterr()
    assert "PASS" in shown.out
    assert "step 1: loss" in shown.err
    found = json.loads(record.read_text())
    assert found["passed"] is True
    assert found["settings"]["steps"] == 2
    assert str(tmp_path) not in record.read_text()


def test_a_check_that_fails(session_of_the_case, gpt_case, faults, monkeypatch, capsys):
    broken = gpt_case.but(faults=faults(beta2=0.95))
    monkeypatch.setattr(type(gpt_case), "but", lambda self, **changes: broken)
    arguments = ("--precision", "float64", "--steps", "3")
    assert run("check", *SIZES, *arguments) == 1
    shown = capsys.readouterr().out
    assert "FAIL: step 0: moment of wte.v" in shown
    assert "1 of 3 steps" in shown
    assert run("check", *SIZES, *arguments, "--keep-going") == 1
    assert "3 of 3 steps" in capsys.readouterr().out


def test_a_check_on_a_text(session_of_the_case, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("abracadabra " * 20)
    assert run("check", *SIZES, "--precision", "float64", "--data", str(text)) == 0
    assert len(session_of_the_case) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check", "--data", "absent.txt"), "absent.txt"),
        (("check", "--nanogpt", "absent.py"), "absent.py"),
        (("check", "--sql", "absent.sql"), "absent.sql"),
        (("check", "--heads", "3"), "multiple of 3 heads"),
        (("bench", "--nanogpt", "absent.py"), "absent.py"),
        (
            ("bench", "--no-sql", "--no-compile", "--rounds", "1", "--baseline", "x"),
            "contender 'x'",
        ),
    ],
)
def test_requests_that_cannot_be_carried_out(arguments, message, capsys):
    command, *rest = arguments
    assert run(command, *SIZES, *rest) == 2
    assert message in capsys.readouterr().err


def test_a_missing_device(capsys):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    assert run("check", *SIZES, "--device", "cuda") == 2
    assert "no CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [("--steps", "0"), ("--dropout", "1.0"), ("--seed", "-1"), ("--precision", "float16")],
)
def test_options_out_of_range(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        run("check", *arguments)
    assert caught.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_a_benchmark(session_of_the_case, tmp_path, capsys):
    record = tmp_path / "bench.json"
    arguments = ("--rounds", "2", "--block", "1", "--no-compile", "--json", str(record))
    assert run("bench", *SIZES, *arguments) == 0
    shown = capsys.readouterr()
    assert "SQL eager" in shown.out
    assert "ratios to native eager" in shown.out
    assert "round 2 of 2" in shown.err
    assert [c["name"] for c in json.loads(record.read_text())["contenders"]] == [
        "SQL eager",
        "native eager",
    ]


def test_measuring_noise(tmp_path, capsys):
    record = tmp_path / "noise.json"
    arguments = ("--steps", "1", "--precision", "float32", "--json", str(record))
    assert run("noise", *SIZES, *arguments) == 0
    assert "gradient" in capsys.readouterr().out
    floors = json.loads(record.read_text())["floors"]
    assert 0 < floors["gradient"]["norm"] < 1e-5


def test_the_transformers_check_needs_its_package(monkeypatch, capsys):
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    assert run("check", *SIZES, "--transformers") == 2
    assert "sql-oracle[transformers]" in capsys.readouterr().err


def test_the_recipe_decays_matrices_only():
    recipe = sessions.Recipe(GPTConfig(layers=1, heads=1, width=2, context=2, vocabulary=3))
    assert {name for name, rate in recipe.weight_decay.items() if rate == 0.0} == {
        "ln_attn",
        "ln_mlp",
        "ln_final",
    }
    tables = recipe.initial_tables()
    assert set(tables) == set(recipe.weight_decay)
    assert tables["attn_qkv"].shape == (1, 3, 1, 2, 2)


def test_a_checkpoint_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "_training_session", lambda *arguments: object())
    with pytest.raises(MissingFile, match=r"absent\.npz"):
        sessions.build_session(
            sessions.Recipe(GPTConfig()),
            lambda config: "",
            precision="float64",
            device="cpu",
            checkpoint=tmp_path / "absent.npz",
        )


def test_text_batches(tmp_path):
    config = GPTConfig(layers=1, heads=1, width=2, context=4, vocabulary=3)
    path = tmp_path / "text.txt"
    path.write_text("cabcabcab")
    batch = next(text_batches(path, config, 5, 0))
    assert batch["tokens"].shape == (5, 4)
    assert np.array_equal((batch["tokens"] + 1) % 3, batch["targets"])
    path.write_text("abcd" * 5)
    with pytest.raises(OracleError, match="4 distinct characters"):
        next(text_batches(path, config, 1, 0))
    path.write_text("abc")
    with pytest.raises(OracleError, match="3 characters"):
        next(text_batches(path, config, 1, 0))
    path.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(MissingFile, match="cannot read"):
        next(text_batches(path, config, 1, 0))

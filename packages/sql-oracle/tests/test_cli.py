"""The command's exit status, output, records, and messages about bad requests."""

import json

import numpy as np
import pytest
from sql_oracle import (
    GPTConfig,
    MissingFile,
    OracleError,
    UnwritableFile,
    cli,
    sessions,
    write_json,
)
from sql_oracle.batches import synthetic_batches, text_batches
from sql_oracle.report import check_writable

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


COMMANDS = ("check", "bench", "noise")


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


@pytest.fixture
def bad_files(tmp_path, monkeypatch):
    """A folder with a file of every wrong kind, and the working directory."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    (tmp_path / "short.txt").write_text("abc")
    (tmp_path / "many.txt").write_text("the quick brown fox jumps over the lazy dog")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "no_model.py").write_text("x = 1\n")
    (tmp_path / "other_model.py").write_text(
        "import torch\n"
        "class GPTConfig:\n    def __init__(self, **sizes): pass\n"
        "class GPT(torch.nn.Linear):\n    def __init__(self, sizes): super().__init__(2, 2)\n"
    )
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "base.py").write_text("class E(BaseException): pass\nraise E('x')\n")
    (tmp_path / "drop.sql").write_text("DROP TABLE wte")
    (tmp_path / "two.sql").write_text("SELECT 1 AS loss; SELECT 2 AS loss")
    (tmp_path / "partial.sql").write_text("SELECT AVG(w.val) AS loss FROM wte w")
    np.savez(tmp_path / "arrays.npz", wte=np.zeros(3))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "arrays.npz").read_bytes()[:100])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check", "--data", "absent.txt"), "cannot read the text absent.txt"),
        (("check", "--data", "folder"), "cannot read the text folder"),
        (("check", "--data", "binary"), "cannot read the text binary"),
        (("check", "--data", "empty"), "empty has 0 characters, a sequence needs 7"),
        (("check", "--data", "short.txt"), "short.txt has 3 characters, a sequence needs 7"),
        (("check", "--data", "many.txt"), "distinct characters; the vocabulary has 11"),
        (("check", "--heads", "3"), "multiple of 3 heads"),
        (("noise", "--heads", "3"), "multiple of 3 heads"),
        (("check", "--checkpoint", "absent.npz"), "no checkpoint file absent.npz"),
        (("check", "--checkpoint", "folder"), "no checkpoint file folder"),
        (("check", "--checkpoint", "empty"), "cannot load empty: the file is empty"),
        (("check", "--checkpoint", "binary"), "cannot load binary: the file is not an NPZ archive"),
        (("check", "--checkpoint", "cut.npz"), "cannot load cut.npz"),
        (("check", "--checkpoint", "arrays.npz"), "this NPZ file is not a checkpoint"),
        (("check", "--width", str(2**44), "--heads", "1"), "not enough memory"),
        (("bench", "--baseline", "x"), "no contender 'x' is timed; there are SQL eager, SQL comp"),
        (("bench", "--no-sql", "--baseline", "SQL eager"), "no contender 'SQL eager'"),
        *(
            ((command, option, file), message)
            for command in ("check", "bench")
            for option, file, message in (
                ("--nanogpt", "absent.py", "cannot read the nanoGPT file absent.py"),
                ("--nanogpt", "folder", "cannot read the nanoGPT file folder"),
                ("--nanogpt", "binary", "binary does not run as Python"),
                ("--nanogpt", "empty", "empty has no GPT"),
                ("--nanogpt", "no_model.py", "no_model.py has no GPT"),
                ("--nanogpt", "leaves.py", "leaves.py does not run as Python: SystemExit: 3"),
                ("--nanogpt", "base.py", "base.py does not run as Python: E: x"),
                ("--sql", "absent.sql", "cannot read the loss query absent.sql"),
                ("--sql", "folder", "cannot read the loss query folder"),
                ("--sql", "binary", "cannot read the loss query binary"),
            )
        ),
        (("check", "--sql", "empty"), "the statement is empty"),
        (("check", "--sql", "drop.sql"), "loss: it must be a query, and begins with 'DROP TABLE"),
        *(((command, "--layers", "99999999999"), "not enough memory") for command in COMMANDS),
        (("noise", "--width", "1", "--heads", "1"), "width must be at least 2, it is 1"),
        (("check", "--sql", "two.sql"), "more than one statement"),
        (("check", "--sql", "partial.sql"), "does not read parameter 'wpe'"),
        *(
            ((command, "--json", file), "cannot write the record")
            for command in ("check", "bench", "noise")
            for file in ("", "folder", "absent/record.json", "empty/record.json", "n" * 300)
        ),
        *(
            (("check", "--transformers", option, "empty"), f"{option} has no part")
            for option in ("--nanogpt", "--sql", "--data", "--checkpoint")
        ),
    ],
)
def test_a_request_that_cannot_be_carried_out_is_one_line(bad_files, arguments, message, capsys):
    command, *rest = arguments
    before = sorted(bad_files.iterdir())
    assert run(command, *SIZES, *rest) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert message in shown.err
    assert shown.err.startswith("sql-oracle: ")
    assert shown.err.count("\n") == 1
    assert sorted(bad_files.iterdir()) == before


@pytest.mark.parametrize("command", ["check", "bench"])
def test_a_model_file_of_other_parameters_is_refused_before_any_work(bad_files, command, capsys):
    assert run(command, *SIZES, "--nanogpt", "other_model.py") == 2
    lines = capsys.readouterr().err.splitlines()
    assert "warning" in lines[0]
    assert "bias: (2,) instead of nothing" in lines[1]
    assert "transformer.wte.weight: missing instead of (11, 8)" in lines[1]
    assert len(lines) == 2


def test_an_interrupt_is_one_line(bad_files, capsys):
    (bad_files / "interrupted.py").write_text("raise KeyboardInterrupt\n")
    assert run("check", *SIZES, "--nanogpt", "interrupted.py") == 130
    assert capsys.readouterr().err == "sql-oracle: interrupted\n"


def test_finding_out_whether_a_record_can_be_written_changes_nothing(tmp_path):
    path = tmp_path / "record.json"
    check_writable(path)
    assert not path.exists()
    path.write_text("earlier")
    check_writable(path)
    assert path.read_text() == "earlier"


def test_a_record_that_can_no_longer_be_written(tmp_path):
    with pytest.raises(UnwritableFile, match=r"record\.json"):
        write_json(tmp_path / "gone" / "record.json", {})


def test_a_checkpoint_continues_with_the_settings_asked_for(tmp_path, capsys):
    config = GPTConfig(layers=2, heads=2, width=8, context=6, vocabulary=11)
    recipe = sessions.Recipe(config, batch_size=2, dropout=0.4, seed=5, peak=0.1)
    session = sessions.build_session(
        recipe, sessions.default_loss_sql(), precision="float64", device="cpu"
    )
    session.step(next(synthetic_batches(config, 2, 1, 0)))
    path = tmp_path / "c.npz"
    session.save(path)
    arguments = ("--precision", "float64", "--steps", "2", "--checkpoint", str(path))
    assert run("check", *SIZES, *arguments) == 0
    assert "step 2: loss" in capsys.readouterr().err
    # A checkpoint of another model is refused, and what differs is named.
    arguments = ("--precision", "float64", "--layers", "1", "--checkpoint", str(path))
    assert run("check", *SIZES, *arguments) == 2
    assert "ln_mlp: file float64[2, 8], expected float64[1, 8]" in capsys.readouterr().err


def test_a_missing_device(capsys):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    assert run("check", *SIZES, "--device", "cuda") == 2
    assert "no CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--batch", "0", "0 is not at least 1"),
        ("--batch", "-2", "-2 is not at least 1"),
        ("--batch", "two", "'two' is not a whole number"),
        ("--layers", "1.5", "'1.5' is not a whole number"),
        ("--context", "0", "0 is not at least 1"),
        ("--threads", "0", "0 is not at least 1"),
        ("--threads", "100000", "100000 is not at most 4,096"),
        ("--layers", "9" * 30, "is not at most 4,611,686,018,427,387,904"),
        ("--dropout", "1.0", "1.0 is not in [0, 1)"),
        ("--dropout", "nan", "nan is not in [0, 1)"),
        ("--dropout", "some", "'some' is not a number"),
        ("--seed", "-1", "-1 is not in [0, 2^63)"),
        ("--seed", "1e3", "'1e3' is not a whole number"),
        ("--precision", "float16", "choose from"),
        ("--device", "tpu", "choose from"),
    ],
)
@pytest.mark.parametrize("command", ["check", "bench", "noise"])
def test_options_out_of_range(command, option, value, message, capsys):
    with pytest.raises(SystemExit) as caught:
        run(command, option, value)
    assert caught.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"sql-oracle {command}: error: argument {option}: ")
    assert message in last


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "--steps", "0"),
        ("check", "--steps", "-3"),
        ("noise", "--steps", "0"),
        ("noise", "--seeds", "0"),
        ("bench", "--rounds", "0"),
        ("bench", "--block", "-1"),
        ("check", "--steps", "9" * 30),
    ],
)
def test_counts_of_a_command_out_of_range(arguments, capsys):
    with pytest.raises(SystemExit):
        run(*arguments)
    assert "is not at " in capsys.readouterr().err


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
    monkeypatch.delattr(sessions, "_training_session")  # Nothing is planned first.
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


@pytest.mark.parametrize("place", ["when it is made", "when it is tried out"])
def test_a_model_that_leaves_the_process_is_refused(place, tmp_path, capsys):
    made, called = (
        ("sys.exit(4)", "pass") if place == "when it is made" else ("pass", "sys.exit(4)")
    )
    names = "list(nanogpt_shapes(c).items())"
    (tmp_path / "model.py").write_text(
        "import sys, torch\nfrom sql_oracle.recorded import nanogpt_shapes\n"
        "from sql_oracle import GPTConfig as Sizes\n"
        "class GPTConfig:\n    def __init__(self, **sizes): vars(self).update(sizes)\n"
        "class GPT(torch.nn.Module):\n"
        "    def __init__(self, s):\n"
        f"        super().__init__()\n        {made}\n"
        "        c = Sizes(s.n_layer, s.n_head, s.n_embd, s.block_size, s.vocab_size)\n"
        f"        self.kept = {names}\n"
        "    def named_parameters(self, *a, **k):\n"
        "        return [(n, torch.nn.Parameter(torch.zeros(s))) for n, s in self.kept]\n"
        f"    def forward(self, tokens, targets):\n        {called}\n"
    )
    assert run("check", *SIZES, "--nanogpt", str(tmp_path / "model.py")) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("SystemExit: 4")

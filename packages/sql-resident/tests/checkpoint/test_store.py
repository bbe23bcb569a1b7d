from __future__ import annotations

import os

import numpy as np
import pytest
from sql_resident.checkpoint import (
    CheckpointFolder,
    ExpectedState,
    load,
    load_manifest,
    make_checkpoint,
    save,
    sql_hash,
)
from sql_resident.errors import CheckpointError, SessionError


def test_the_expected_state_loads(state, tmp_path):
    path = tmp_path / "state.npz"
    save(path, state(1))
    expected = ExpectedState.of(state(2).arrays, "abc")
    assert load(path, expected) == state(1)
    assert load(path, ExpectedState.of(state(2).arrays)) == state(1)


def test_another_models_checkpoint_is_refused_with_every_difference(tmp_path):
    path = tmp_path / "state.npz"
    arrays = {"a": np.zeros((2, 3)), "b": np.zeros(2), "c": np.zeros(1), "same": np.zeros(5)}
    save(path, make_checkpoint(arrays, step=1, seed=2, sql_hash="one"))
    expected = ExpectedState.of(
        {
            "a": np.zeros((3, 2)),
            "b": np.zeros(2, np.float32),
            "d": np.array(1),
            "same": np.zeros(5),
        },
        "two",
    )
    with pytest.raises(CheckpointError) as caught:
        load(path, expected)
    assert caught.value.mismatches == (
        "a: file float64[2, 3], expected float64[3, 2]",
        "b: file float64[2], expected float32[2]",
        "c: file float64[1], expected none",
        "d: file none, expected int64[]",
        "hash of the step's SQL: file one, expected two",
    )
    for line in (*caught.value.mismatches, str(path)):
        assert line in str(caught.value)
    assert caught.value.path == path


def test_the_hash_of_the_sql_alone_refuses(state, tmp_path):
    save(tmp_path / "state.npz", state(1))
    with pytest.raises(CheckpointError, match="file abc, expected def"):
        load(tmp_path / "state.npz", ExpectedState.of(state(1).arrays, "def"))


def test_sql_hash_is_sha256_of_the_text():
    assert sql_hash("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize("read", [load, load_manifest])
def test_an_absent_file_is_a_typed_error(read, tmp_path):
    with pytest.raises(CheckpointError, match=r"absent\.npz: No such file") as caught:
        read(tmp_path / "absent.npz")
    assert isinstance(caught.value, SessionError)
    with pytest.raises(CheckpointError, match="Is a directory"):
        read(tmp_path)


def test_saving_where_it_cannot_be_is_a_typed_error(state, tmp_path):
    with pytest.raises(CheckpointError, match=r"folder .*absent does not exist"):
        save(tmp_path / "absent" / "state.npz", state(1))
    with pytest.raises(CheckpointError, match="it is a folder"):
        save(tmp_path, state(1))
    with pytest.raises(CheckpointError, match="File name too long"):
        save(tmp_path / ("n" * 300), state(1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("linked", [False, True], ids=["itself", "through a link"])
def test_a_save_does_not_replace_what_is_no_file(linked, state, tmp_path):
    """Such as a device, which a privileged process could replace by a file."""
    path = pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    if linked:
        path = tmp_path / "link"
        path.symlink_to(pipe)
    with pytest.raises(CheckpointError, match="it is a device, a pipe or a socket"):
        save(path, state(1))
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (None, "cannot .* None: a path is a string or a pathlib.Path, not NoneType"),
        (3, "cannot .* 3: a path is a string"),
        (1.5, "cannot .* 1.5: a path is a string"),
        ("a\0b", "a path has no null character"),
    ],
)
def test_what_is_no_path_is_a_typed_error(path, message, state):
    for use in (
        lambda: save(path, state(1)),
        lambda: load(path),
        lambda: load_manifest(path),
        lambda: CheckpointFolder(path),
    ):
        with pytest.raises(CheckpointError, match=message):
            use()


def test_a_folder_saves_checkpoints_only_under_a_metrics_name(tmp_path):
    with pytest.raises(CheckpointError, match="best is 3, not the name of a metric"):
        CheckpointFolder(tmp_path, best=3)
    with pytest.raises(CheckpointError, match="cannot save a int"):
        CheckpointFolder(tmp_path).save(3)


def test_a_path_of_bytes_does(state, tmp_path):
    save(os.fsencode(tmp_path / "state.npz"), state(1))
    assert load(os.fsencode(tmp_path / "state.npz")) == state(1)


def test_a_symbolic_link_is_followed(state, tmp_path):
    (tmp_path / "real").mkdir()
    save(tmp_path / "real" / "state.npz", state(1))
    link = tmp_path / "link.npz"
    link.symlink_to(tmp_path / "real" / "state.npz")
    save(link, state(2))
    assert link.is_symlink()
    assert load(tmp_path / "real" / "state.npz") == state(2)


def test_a_relative_path_and_a_string_do(state, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save("state.npz", state(1))
    assert load("state.npz") == state(1)
    assert os.listdir(tmp_path) == ["state.npz"]

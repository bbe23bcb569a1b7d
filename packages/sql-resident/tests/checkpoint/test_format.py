from __future__ import annotations

import hashlib
import json
import math
import runpy
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from sql_resident.checkpoint import (
    FORMAT_VERSION,
    Checkpoint,
    array_digest,
    load,
    load_manifest,
    make_checkpoint,
    save,
)
from sql_resident.checkpoint.format import DTYPES, check_name, encode_checkpoint
from sql_resident.errors import CheckpointError

VERSION_1 = Path(__file__).parent.parent / "data" / "checkpoint_v1.npz"


def is_valid(name: str) -> bool:
    try:
        check_name(name)
    except CheckpointError:
        return False
    return True


def any_bits(dtype: str) -> st.SearchStrategy[np.ndarray]:
    """Arrays of every bit pattern: all NaN payloads, -0.0, denormals; 0-d and empty ones."""
    kind = np.dtype(dtype)
    shapes = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    if kind.kind == "b":
        return npst.arrays(kind, shapes)
    return npst.arrays(np.dtype(f"u{kind.itemsize}"), shapes).map(lambda bits: bits.view(kind))


arrays = st.sampled_from(sorted(DTYPES)).flatmap(any_bits)
names = st.text(min_size=1, max_size=12).filter(is_valid)
states = st.dictionaries(names, arrays, max_size=4)
numbers = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
checkpoints = st.builds(
    make_checkpoint,
    states,
    step=st.integers(0, 2**70),
    seed=st.integers(0, 2**64 - 1),
    data_position=json_values,
    schedule=json_values,
    configuration=json_values,
    sql_hash=st.text(max_size=8),
    counters=st.dictionaries(st.text(max_size=3), st.integers(), max_size=3),
    metrics=st.dictionaries(st.text(max_size=3), st.floats(), max_size=3),
    created_with=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3),
)


@settings(deadline=None)  # the disk sets the pace
@given(checkpoint=checkpoints)
def test_load_of_save_is_identity_bit_for_bit(checkpoint, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "identity.npz"
    save(path, checkpoint)
    loaded = load(path)
    assert loaded.manifest == checkpoint.manifest
    assert loaded.manifest.to_document() == checkpoint.manifest.to_document()
    assert list(loaded.arrays) == sorted(checkpoint.arrays)
    for name, array in checkpoint.arrays.items():
        assert loaded.arrays[name].dtype == array.dtype
        assert loaded.arrays[name].shape == array.shape
        assert loaded.arrays[name].tobytes() == array.tobytes()


@settings(deadline=None, max_examples=40)
@given(checkpoint=checkpoints)
def test_numpy_alone_reads_what_was_saved(checkpoint, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "numpy.npz"
    save(path, checkpoint)
    with np.load(path, allow_pickle=False) as file:
        assert file.files[:2] == ["__manifest__", "__manifest_sha256__"]
        document = file["__manifest__"].tobytes()
        assert file["__manifest_sha256__"].tobytes() == hashlib.sha256(document).digest()
        assert json.loads(document)["format_version"] == FORMAT_VERSION
        assert set(file.files[2:]) == set(checkpoint.arrays)
        for name, array in checkpoint.arrays.items():
            assert file[name].shape == array.shape
            assert file[name].tobytes() == array.tobytes()


@settings(deadline=None, max_examples=40)
@given(checkpoint=checkpoints)
def test_manifest_alone_equals_manifest_of_the_whole(checkpoint, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "manifest.npz"
    save(path, checkpoint)
    assert load_manifest(path) == checkpoint.manifest


def test_equal_states_give_equal_bytes_whatever_order_and_layout():
    matrix = np.arange(6.0).reshape(2, 3)
    first = make_checkpoint({"b": matrix, "a": np.array(1)}, step=1, seed=2, counters={"x": 1})
    second = make_checkpoint(
        {"a": np.array(1), "b": np.asfortranarray(matrix)}, step=1, seed=2, counters={"x": 1}
    )
    assert b"".join(encode_checkpoint(first)) == b"".join(encode_checkpoint(second))
    assert first == second


def test_every_piece_that_is_written_is_non_empty(state):
    assert all(len(piece) > 0 for piece in encode_checkpoint(state(1)))


def test_an_array_larger_than_a_chunk_is_whole(tmp_path):
    array = np.arange(2**22 + 3, dtype=np.float64)
    save(tmp_path / "large.npz", make_checkpoint({"w": array}, step=0, seed=0))
    assert np.array_equal(load(tmp_path / "large.npz").arrays["w"], array)


def test_equality_sees_one_bit_and_the_sign_of_zero():
    def checkpoint(value: float) -> Checkpoint:
        return make_checkpoint({"w": np.array([value])}, step=1, seed=2)

    assert checkpoint(0.0) == checkpoint(0.0)
    assert checkpoint(0.0) != checkpoint(-0.0)
    assert checkpoint(math.nan) == checkpoint(math.nan)
    assert checkpoint(1.0) != checkpoint(np.nextafter(1.0, 2.0))
    assert checkpoint(1.0) != "checkpoint"


def test_digest_covers_dtype_and_shape():
    digests = {
        array_digest(array)
        for array in (
            np.zeros((2, 3)),
            np.zeros((3, 2)),
            np.zeros(6),
            np.zeros((2, 3), np.int64),
            np.zeros(12, np.float32),
        )
    }
    assert len(digests) == 5


def test_digest_is_sha256_of_spec_and_bytes():
    array = np.array([[1.5, -2.0]], np.float32)
    expected = hashlib.sha256(b"float32[1, 2]\0" + array.tobytes()).hexdigest()
    assert array_digest(array) == expected


def test_a_checkpoint_is_a_snapshot_and_immutable():
    array = np.zeros(3)
    position = {"offsets": [1, 2]}
    checkpoint = make_checkpoint({"w": array}, step=1, seed=2, data_position=position)
    array[0] = 5
    position["offsets"].append(3)
    assert checkpoint.arrays["w"].tolist() == [0, 0, 0]
    assert checkpoint.manifest.data_position["offsets"] == (1, 2)
    with pytest.raises(ValueError, match="read-only"):
        checkpoint.arrays["w"][0] = 1
    with pytest.raises(TypeError):
        checkpoint.arrays["v"] = array
    with pytest.raises(TypeError):
        checkpoint.manifest.data_position["offsets"] = ()
    with pytest.raises(FrozenInstanceError):
        checkpoint.manifest.step = 3


def test_without_copy_the_arrays_are_the_given_memory():
    array = np.zeros(3)
    checkpoint = make_checkpoint({"w": array}, step=1, seed=2, copy=False)
    assert np.shares_memory(checkpoint.arrays["w"], array)
    assert array.flags.writeable


def test_a_manifest_that_does_not_describe_the_arrays_is_refused():
    checkpoint = make_checkpoint({"w": np.zeros(3)}, step=1, seed=2)
    with pytest.raises(CheckpointError, match=r"w: manifest float64\[3\], arrays float64\[4\]"):
        Checkpoint({"w": np.zeros(4)}, checkpoint.manifest)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": -1}, "step is -1"),
        ({"step": 1.0}, r"step is 1\.0"),
        ({"step": True}, "step is True"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"seed": -1}, "seed is -1"),
        ({"sql_hash": None}, "sql_hash is None"),
        ({"data_position": {"a": [1, {2}]}}, r"data_position\.a\[1\] is a builtins\.set"),
        ({"data_position": {1: 2}}, "data_position has the key 1"),
        ({"configuration": np.int64(3)}, r"configuration is a numpy\.int64"),
        ({"schedule": {"lr": math.inf}}, r"schedule\.lr is inf"),
        ({"counters": {"steps": 1.5}}, r"counters\.steps is 1\.5"),
        ({"created_with": {"numpy": 2}}, r"created_with\.numpy is 2"),
    ],
)
def test_invalid_values_are_named(change, message):
    with pytest.raises(CheckpointError, match=message):
        make_checkpoint({}, **{"step": 0, "seed": 0, **change})


@pytest.mark.parametrize(
    "array",
    [
        np.array(["text"]),
        np.array([None]),
        np.zeros(2, np.complex128),
        np.zeros(2, np.float16),
        np.zeros(2, ">f4"),
        [1.0, 2.0],
    ],
    ids=["str", "object", "complex", "float16", "big-endian", "list"],
)
def test_unsupported_arrays_are_named(array):
    with pytest.raises(CheckpointError, match=r"array 'w' is .*float32, float64") as caught:
        make_checkpoint({"w": array}, step=0, seed=0)
    assert caught.value.member == "w"


@pytest.mark.parametrize(
    "name", ["", "__w", "a/b", "a\\b", "a\nb", "w.npy", "w" * 256, "é" * 128, "\ud800", 3]
)
def test_unsuitable_names_are_refused(name):
    with pytest.raises(CheckpointError, match="array name"):
        make_checkpoint({name: np.zeros(1)}, step=0, seed=0)


def test_metrics_that_are_not_finite_are_recorded_as_none():
    checkpoint = make_checkpoint({}, step=0, seed=0, metrics={"a": math.nan, "b": 2, "c": math.inf})
    assert dict(checkpoint.manifest.metrics) == {"a": None, "b": 2.0, "c": None}


def test_created_with_names_versions_by_default():
    versions = make_checkpoint({}, step=0, seed=0).manifest.created_with
    assert versions["numpy"] == np.__version__
    assert set(versions) == {"python", "sql-resident", "sql-compact", "numpy", "torch"}


def test_a_file_of_version_1_loads_and_saves_as_the_current_version(tmp_path):
    script = runpy.run_path(str(Path(__file__).parent / "make_version_1.py"))
    checkpoint = load(VERSION_1)
    expected = script["arrays"]()
    assert {name: array.tolist() for name, array in checkpoint.arrays.items()} == {
        name: array.tolist() for name, array in expected.items()
    }
    document = checkpoint.manifest.to_document()
    for field, value in script["MANIFEST"].items():
        if field != "format_version":
            assert document[field] == value
    assert document["counters"] == {}
    assert checkpoint.manifest.arrays["wte"].sha256 == array_digest(expected["wte"])
    assert load_manifest(VERSION_1) == checkpoint.manifest
    save(tmp_path / "now.npz", checkpoint)
    assert load(tmp_path / "now.npz") == checkpoint
    with np.load(tmp_path / "now.npz") as file:
        assert json.loads(file["__manifest__"].tobytes())["format_version"] == FORMAT_VERSION


def rewritten(path: Path, change) -> None:
    """Apply ``change`` to the manifest of a file, with a valid digest, and save with NumPy."""
    with np.load(path) as file:
        members = dict(file)
    document = json.loads(members["__manifest__"].tobytes())
    change(document, members)
    text = json.dumps(document).encode()
    members["__manifest__"] = np.frombuffer(text, np.uint8)
    members["__manifest_sha256__"] = np.frombuffer(hashlib.sha256(text).digest(), np.uint8)
    np.savez(path, **members)


def set_version(document, members):
    document["format_version"] = FORMAT_VERSION + 1


def drop_step(document, members):
    del document["step"]


def add_field(document, members):
    document["mystery"] = 1


def malform_record(document, members):
    document["arrays"]["wte"] = 3


def negative_step(document, members):
    document["step"] = -4


def drop_array(document, members):
    del members["wte"]


def add_array(document, members):
    members["extra"] = np.zeros(2)


def change_value(document, members):
    members["wte"][1, 1] += 1


def change_shape(document, members):
    members["wte"] = members["wte"].T.copy()


def fortran_order(document, members):
    members["wte"] = np.asfortranarray(members["wte"])


def objects(document, members):
    members["wte"] = np.array([None])


def half(document, members):
    members["wte"] = members["wte"].astype(np.float16)


@pytest.mark.parametrize(
    ("change", "message", "member"),
    [
        (set_version, "format version 3; this release reads 1 to 2", "__manifest__"),
        (drop_step, r"lacks \['step'\]", "__manifest__"),
        (add_field, r"unknown fields \['mystery'\]", "__manifest__"),
        (malform_record, "records of arrays are malformed", "__manifest__"),
        (negative_step, "step is -4", None),
        (drop_array, "'wte' is in the manifest but not in the file", "wte"),
        (add_array, "'extra' is in the file but not in the manifest", "extra"),
        (change_value, "'wte' does not have the digest", "wte"),
        (change_shape, r"'wte' is float32\[4, 3\], but the manifest says float32\[3, 4\]", "wte"),
        (fortran_order, "'wte' is damaged: it is in Fortran order", "wte"),
        (objects, "'wte' is damaged: it holds Python objects", "wte"),
        (half, "'wte' has dtype float16", "wte"),
    ],
)
def test_files_changed_on_purpose_are_refused(change, message, member, state, tmp_path):
    path = tmp_path / "state.npz"
    save(path, state(3))
    rewritten(path, change)
    with pytest.raises(CheckpointError, match=message) as caught:
        load(path)
    assert caught.value.member == member
    assert str(path) in str(caught.value)


def test_other_npz_files_are_refused(tmp_path):
    np.savez(tmp_path / "other.npz", w=np.zeros(3))
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        load(tmp_path / "other.npz")


def test_a_manifest_that_was_edited_is_refused(state, tmp_path):
    """NumPy writes fitting CRCs, so only the manifest's own digest can tell."""
    path = tmp_path / "state.npz"
    save(path, state(1))
    with np.load(path) as file:
        members = dict(file)
    edited = members["__manifest__"].tobytes().replace(b'"seed":1337', b'"seed":1338')
    members["__manifest__"] = np.frombuffer(edited, np.uint8)
    np.savez(path, **members)
    for read in (load, load_manifest):
        with pytest.raises(CheckpointError, match="does not have the digest") as caught:
            read(path)
        assert caught.value.member == "__manifest__"


def test_a_manifest_without_its_digest_is_refused(state, tmp_path):
    save(tmp_path / "state.npz", state(1))
    with np.load(tmp_path / "state.npz") as file:
        members = dict(file)
    del members["__manifest_sha256__"]
    np.savez(tmp_path / "state.npz", **members)
    with pytest.raises(CheckpointError, match="'__manifest_sha256__' is missing"):
        load(tmp_path / "state.npz")

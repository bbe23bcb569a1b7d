from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sql_resident.checkpoint import CheckpointFolder, load, make_checkpoint
from sql_resident.errors import CheckpointError


def scored(step: int, loss: float | None = None):
    metrics = {} if loss is None else {"val_loss": loss}
    return make_checkpoint({"w": np.array(step)}, step=step, seed=0, metrics=metrics)


def test_files_are_numbered_by_step_and_the_newest_are_kept(tmp_path):
    folder = CheckpointFolder(tmp_path / "run" / "checkpoints", keep_last=2)
    assert folder.latest() is None
    assert folder.steps() == ()
    for step in (5, 10, 15, 1_000_000_000_000_000):
        path = folder.save(scored(step))
        assert path == folder.latest() == folder.file_of(step)
        assert load(path) == scored(step)
    assert folder.steps() == (15, 1_000_000_000_000_000)
    assert folder.file_of(15).name == "step-000000000015.npz"


def test_the_best_file_is_kept(tmp_path):
    folder = CheckpointFolder(tmp_path, keep_last=1, best="val_loss")
    assert folder.best() is None
    for step, loss in enumerate([3.0, 1.0, 2.0, float("nan"), 4.0]):
        folder.save(scored(step, loss))
    folder.save(scored(5))
    assert folder.best() == folder.file_of(1)
    assert folder.steps() == (1, 5)


def test_of_equally_good_files_the_newest_is_best(tmp_path):
    folder = CheckpointFolder(tmp_path, keep_last=1, best="val_loss", mode="max")
    for step, score in enumerate([1.0, 2.0, 2.0, 0.0]):
        folder.save(scored(step, score))
    assert folder.best() == folder.file_of(2)
    assert folder.steps() == (2, 3)


@settings(deadline=None, max_examples=40)  # the disk sets the pace
@given(
    saves=st.lists(
        st.tuples(st.integers(0, 20), st.none() | st.sampled_from([0.0, 1.0, 2.0, float("nan")])),
        max_size=8,
    ),
    keep_last=st.integers(1, 3),
)
def test_pruning_never_removes_the_best_the_newest_or_the_one_just_saved(
    saves, keep_last, tmp_path_factory
):
    folder = CheckpointFolder(tmp_path_factory.mktemp("prune"), keep_last, best="val_loss")
    losses: dict[int, float | None] = {}
    for step, loss in saves:
        folder.save(scored(step, loss))
        losses[step] = loss
        newest = sorted(losses)[-keep_last:]
        finite = [(value, -at) for at, value in losses.items() if value is not None and value >= 0]
        keep = {step, *newest, *([-min(finite)[1]] if finite else [])}
        losses = {at: value for at, value in losses.items() if at in keep}
        assert folder.steps() == tuple(sorted(keep))
        assert folder.best() == (folder.file_of(-min(finite)[1]) if finite else None)


def test_a_damaged_file_is_neither_counted_nor_removed_nor_best(tmp_path):
    folder = CheckpointFolder(tmp_path, keep_last=1, best="val_loss")
    folder.save(scored(1, 0.5))
    folder.file_of(1).write_bytes(b"damaged")
    folder.save(scored(2, 0.7))
    folder.save(scored(3, 0.9))
    assert folder.steps() == (1, 2, 3)
    assert folder.best() == folder.file_of(2)


def test_other_files_are_left_alone(tmp_path):
    for name in ("notes.txt", "step-1.npz", "step-000000000001.npz.bak"):
        (tmp_path / name).write_text("mine")
    folder = CheckpointFolder(tmp_path, keep_last=1)
    folder.save(scored(1))
    folder.save(scored(2))
    assert folder.steps() == (2,)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_failed_save_prunes_nothing(tmp_path, watched):
    CheckpointFolder(tmp_path, keep_last=1).save(scored(1))

    def fail(operation):
        if operation == "replace":
            raise OSError(5, "Input/output error")

    broken = CheckpointFolder(tmp_path, keep_last=1, files=watched(fail))
    with pytest.raises(CheckpointError, match="Input/output error"):
        broken.save(scored(2))
    assert broken.steps() == (1,)
    assert load(broken.latest()) == scored(1)


def test_the_new_file_is_complete_before_an_old_one_is_removed(tmp_path, watched):
    CheckpointFolder(tmp_path, keep_last=1).save(scored(1))

    def fail(operation):
        if operation == "remove":
            assert load(folder.file_of(2)) == scored(2)
            raise OSError(13, "Permission denied")

    folder = CheckpointFolder(tmp_path, keep_last=1, files=watched(fail))
    with pytest.raises(CheckpointError, match=r"is saved, but the old .*Permission denied"):
        folder.save(scored(2))
    assert folder.steps() == (1, 2)
    assert folder._files.operations[-2:] == ["sync_folder", "remove"]
    CheckpointFolder(tmp_path, keep_last=1).save(scored(3))
    assert folder.steps() == (3,)


@pytest.mark.parametrize("keep_last", [0, -1, True, 1.5])
def test_invalid_keep_last_is_refused(keep_last, tmp_path):
    with pytest.raises(CheckpointError, match="keep_last"):
        CheckpointFolder(tmp_path, keep_last)


def test_invalid_modes_and_questions_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="mode is 'least'"):
        CheckpointFolder(tmp_path, mode="least")
    with pytest.raises(CheckpointError, match="has no metric"):
        CheckpointFolder(tmp_path).best()


def test_a_folder_that_cannot_be_made_is_a_typed_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot make the folder"):
        CheckpointFolder(tmp_path / "file").save(scored(1))

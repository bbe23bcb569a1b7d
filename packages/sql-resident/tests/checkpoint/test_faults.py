"""Kills, full disks and concurrent readers: always the old state or the new one, exactly."""

from __future__ import annotations

import errno
import json
import os
import runpy
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from sql_resident.checkpoint import load, make_checkpoint, remove_abandoned, save
from sql_resident.checkpoint.files import PARTIAL_SUFFIX, PosixFiles
from sql_resident.checkpoint.format import read_checkpoint
from sql_resident.errors import CheckpointError

HERE = Path(__file__).parent


def run_script(name: str, *arguments: object, prefix: tuple[str, ...] = ()) -> str:
    """Run a helper script with this process's import path; return what it prints."""
    done = subprocess.run(
        [*prefix, sys.executable, str(HERE / name), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.parametrize("over_old", [True, False], ids=["over an old file", "new file"])
def test_kill_at_every_stage_leaves_the_old_state_or_the_new_one(over_old, state, tmp_path):
    old, new, work = tmp_path / "old.npz", tmp_path / "new.npz", tmp_path / "work"
    work.mkdir()
    save(old, state(1))
    save(new, state(2))
    run_stages = runpy.run_path(str(HERE / "stopping_saver.py"))["main"]
    stages = run_stages(new, work, old if over_old else None)
    assert {(operation, when) for _, operation, when in stages} == {
        *((name, "before") for name in ("create", "write", "sync", "replace", "sync_folder")),
        *((name, "after") for name in ("create", "write", "sync", "replace", "sync_folder")),
        ("write", "middle"),
    }
    with_partial = 0
    for place, operation, when in stages:
        path = Path(place) / "state.npz"
        published = operation == "sync_folder" or (operation, when) == ("replace", "after")
        if published:
            assert load(path) == state(2)
        elif over_old:
            assert path.read_bytes() == old.read_bytes()
            assert load(path) == state(1)
        else:
            with pytest.raises(CheckpointError, match="No such file"):
                load(path)
        left = [name for name in names(path.parent) if name != "state.npz"]
        assert len(left) == (0 if published or (operation, when) == ("create", "before") else 1)
        with_partial += len(left)
        save(path, state(3))
        assert load(path) == state(3)
        assert names(path.parent) == ["state.npz"]
    assert with_partial > len(stages) / 2


def test_order_of_operations_makes_the_rename_durable(state, watched, tmp_path):
    files = watched()
    save(tmp_path / "state.npz", state(1), files=files)
    writes = files.operations.count("write")
    assert writes > len(state(1).arrays)
    assert files.operations == [
        "create",
        *["write"] * writes,
        "sync",
        "replace",
        "sync_folder",
    ]


@pytest.mark.parametrize("raised", [OSError(errno.ENOSPC, "No space left on device"), ValueError()])
def test_an_error_at_every_operation_keeps_the_old_file(raised, state, watched, tmp_path):
    path = tmp_path / "state.npz"
    counting = watched()
    save(path, state(1), files=counting)
    for number, operation in enumerate(counting.operations):
        countdown = iter([False] * number + [True])

        def fail(_, countdown=countdown):
            if next(countdown, False):
                raise raised

        save(path, state(1))
        with pytest.raises(CheckpointError) as caught:
            save(path, state(2), files=watched(fail))
        assert caught.value.path == path
        assert caught.value.__cause__ is raised
        cause = raised.strerror if isinstance(raised, OSError) else "ValueError"
        assert str(path) in str(caught.value)
        assert cause in str(caught.value)
        assert load(path) == state(2 if operation == "sync_folder" else 1)
        assert names(tmp_path) == ["state.npz"]


def test_an_interrupt_in_a_save_removes_the_partial_file_and_passes_on(state, watched, tmp_path):
    path = tmp_path / "state.npz"
    save(path, state(1))

    def interrupt(operation):
        if operation == "sync":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save(path, state(2), files=watched(interrupt))
    assert load(path) == state(1)
    assert names(tmp_path) == ["state.npz"]


def test_a_partial_file_that_cannot_be_removed_goes_with_the_next_save(state, watched, tmp_path):
    path = tmp_path / "state.npz"

    def fail(operation):
        if operation in ("sync", "remove"):
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(CheckpointError, match="Input/output error"):
        save(path, state(1), files=watched(fail))
    assert len(names(tmp_path)) == 1
    save(path, state(2))
    assert names(tmp_path) == ["state.npz"]


def test_a_short_write_is_continued(state, tmp_path):
    class Reluctant:
        """A file that takes at most seven bytes at a time."""

        def __init__(self, file):
            self.file = file

        def write(self, data):
            return self.file.write(data[:7])

    class ReluctantFiles(PosixFiles):
        def write(self, file, data):
            super().write(Reluctant(file), data)

    save(tmp_path / "state.npz", state(1), files=ReluctantFiles())
    assert load(tmp_path / "state.npz") == state(1)


def test_the_limit_of_the_file_size_keeps_the_old_file(tmp_path):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            save_limited = runpy.run_path(str(HERE / "limited_saver.py"))["main"]
            os.write(writing, json.dumps(save_limited(tmp_path, 200_000)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        report = json.loads(pipe.read())
    os.waitpid(child, 0)
    assert report["unchanged"] is True
    assert report["names"] == ["state.npz"]
    assert "File too large" in report["error"]
    assert str(tmp_path / "state.npz") in report["error"]


def private_tmpfs(folder: Path) -> tuple[str, ...] | None:
    """A command prefix with a 256 KiB disk at ``folder``, seen by that command alone."""
    if shutil.which("unshare") is None:
        return None
    mount = 'mount -t tmpfs -o size=256k tmpfs "$0" && exec "$@"'
    prefix = ("unshare", "--mount", "--map-root-user", "sh", "-c", mount, str(folder))
    trial = subprocess.run([*prefix, "true"], capture_output=True, timeout=30)
    return prefix if trial.returncode == 0 else None


@pytest.mark.slow
def test_a_full_disk_keeps_the_old_file(tmp_path):
    prefix = private_tmpfs(tmp_path)
    if prefix is None:
        pytest.skip("a small tmpfs cannot be mounted here")
    report = json.loads(run_script("limited_saver.py", tmp_path, prefix=prefix))
    assert report["unchanged"] is True
    assert report["names"] == ["state.npz"]
    assert "No space left on device" in report["error"]
    assert str(tmp_path / "state.npz") in report["error"]


def test_a_load_at_every_operation_of_a_save_sees_the_old_or_the_new(state, watched, tmp_path):
    path = tmp_path / "state.npz"
    save(path, state(1))
    seen = []
    files = watched(lambda operation: seen.append((operation, load(path).manifest.step)))
    save(path, state(2), files=files)
    assert [step for _, step in seen] == [1] * (len(seen) - 1) + [2]
    assert seen[-1][0] == "sync_folder"


def test_a_reader_that_opened_the_file_before_a_save_reads_the_old_state(state, tmp_path):
    path = tmp_path / "state.npz"
    save(path, state(1))
    with open(path, "rb") as file:
        save(path, state(2))
        assert read_checkpoint(file) == state(1)
    assert load(path) == state(2)


def test_readers_and_writers_at_once_see_whole_states_only(state, tmp_path):
    path = tmp_path / "state.npz"
    states = [state(step) for step in range(4)]
    save(path, states[0])
    failures: list[BaseException] = []

    def guarded(work):
        def run():
            try:
                work()
            except BaseException as error:
                failures.append(error)

        return threading.Thread(target=run)

    def write():
        for step in range(40):
            save(path, states[step % 4])

    def read():
        for _ in range(80):
            loaded = load(path)
            assert loaded == states[loaded.manifest.step]

    threads = [guarded(write), guarded(write), guarded(read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert names(tmp_path) == ["state.npz"]


def test_a_live_save_in_the_folder_is_not_taken_for_abandoned(state, watched, tmp_path):
    def other_save(operation):
        if operation in ("write", "sync", "replace"):
            save(tmp_path / "other.npz", state(2))

    save(tmp_path / "state.npz", state(1), files=watched(other_save))
    assert load(tmp_path / "state.npz") == state(1)
    assert load(tmp_path / "other.npz") == state(2)
    assert names(tmp_path) == ["other.npz", "state.npz"]


def test_a_new_file_that_vanishes_before_its_lock_is_made_again(state, tmp_path):
    class Robbed(PosixFiles):
        """Loses its first temporary file to another process's cleaning."""

        attempts = 0

        def create(self, path):
            self.attempts += 1
            if self.attempts == 1:
                raise FileExistsError(path)
            return super().create(path)

    files = Robbed()
    save(tmp_path / "state.npz", state(1), files=files)
    assert files.attempts == 2
    assert load(tmp_path / "state.npz") == state(1)


def test_only_our_abandoned_files_are_removed(tmp_path):
    ours = tmp_path / f".0123456789abcdef{PARTIAL_SUFFIX}"
    ours.write_bytes(b"half")
    theirs = tmp_path / ".other.partial"
    theirs.write_bytes(b"half")
    assert remove_abandoned(tmp_path) == (ours,)
    assert names(tmp_path) == [theirs.name]


def test_saving_a_checkpoint_does_not_change_it(tmp_path):
    checkpoint = make_checkpoint({}, step=0, seed=0)
    save(tmp_path / "a.npz", checkpoint)
    save(tmp_path / "b.npz", checkpoint)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()

"""The climatology and the digits, run as a user runs them; they check their own numbers."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib import image

DEMOS = Path(__file__).parents[1]


def run(script, *arguments, output=None):
    options = () if output is None else ("--output", str(output))
    return subprocess.run(
        [sys.executable, str(DEMOS / script), *arguments, *options], capture_output=True, text=True
    )


def assert_picture(path):
    pixels = image.imread(path)
    assert pixels.shape[0] > 300 and pixels.shape[1] > 600
    assert pixels.std() > 0.05, "nothing is drawn"


def test_climatology_is_that_of_xarray(tmp_path):
    done = run("01_climatology.py", "--days", "400", output=tmp_path / "new" / "folder")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "largest difference from xarray" in done.stdout
    assert_picture(tmp_path / "new" / "folder" / "climatology.png")


def test_unseen_digits_are_read(tmp_path):
    done = run("02_digits_mlp.py", output=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy = float(re.search(r"unseen digits read right: ([\d.]+)%", done.stdout)[1])
    assert accuracy >= 96
    assert_picture(tmp_path / "digits.png")


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("01_climatology.py", ("--days", "365"), "--days must be at least 366"),
        ("01_climatology.py", ("--days", "1000000"), "at most 36525"),
        ("01_climatology.py", ("--days", "many"), "invalid int value"),
        ("02_digits_mlp.py", ("--steps", "0"), "--steps and --features must be at least 1"),
        ("02_digits_mlp.py", ("--seed", "-1"), "--seed at least 0"),
        ("02_digits_mlp.py", ("--seed", str(2**32)), "--seed at most 4,294,967,295"),
        ("02_digits_mlp.py", ("--features", "9" * 12), "--features must be at most 100,000"),
    ],
)
def test_arguments_out_of_range_are_refused(script, arguments, message):
    done = run(script, *arguments)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize("script", ["01_climatology.py", "02_digits_mlp.py"])
def test_an_output_that_is_a_file_is_refused_at_once(script, tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("mine", encoding="utf-8")
    done = run(script, output=taken)
    assert done.returncode == 2
    assert "--output" in done.stderr and str(taken) in done.stderr
    assert taken.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("script", "arguments", "picture"),
    [
        ("01_climatology.py", ("--days", "366"), "climatology.png"),
        ("02_digits_mlp.py", ("--steps", "1"), "digits.png"),
    ],
)
def test_a_picture_that_cannot_be_written_is_one_line(script, arguments, picture, tmp_path):
    (tmp_path / picture).mkdir()
    done = run(script, *arguments, output=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"error: cannot write {tmp_path / picture}")
    assert "Traceback" not in done.stderr

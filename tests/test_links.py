"""The search for dead links finds what is dead, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).parents[1] / ".ci" / "links.py"


def _run(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(_SCRIPT), str(folder)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "link",
    ["absent.md", "sub/absent.png", "other.md#no-such-heading", "#no-such-heading"],
)
def test_a_dead_link_is_reported(tmp_path: Path, link: str) -> None:
    (tmp_path / "other.md").write_text("# Other\n", encoding="utf-8")
    (tmp_path / "page.md").write_text(f"# Page\n\nSee [this]({link}).\n", encoding="utf-8")
    done = _run(tmp_path)
    assert done.returncode == 1
    assert done.stdout == f"dead link: page.md: {link}\n"


def test_live_links_and_code_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "other page.md").write_text("# How it `works`, in short\n", encoding="utf-8")
    (tmp_path / "page.md").write_text(
        "# Page\n\n"
        "[a](<other%20page.md>) [b](other%20page.md#how-it-works-in-short) [c](#page)\n"
        "[d](https://example.org/absent.md) `[e](absent.md)`\n\n"
        "[f]: other%20page.md\n\n"
        "```text\n[g](absent.md)\n```\n",
        encoding="utf-8",
    )
    done = _run(tmp_path)
    assert done.returncode == 0, done.stdout

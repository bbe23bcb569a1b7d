"""ddx's smoke check passes on the ddx installed here, and fails where planning is not linear."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

_SMOKE = Path(__file__).parents[1] / "smoke" / "ddx.py"


def test_the_installed_ddx_passes() -> None:
    done = subprocess.run(
        [sys.executable, str(_SMOKE)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    checks = ("gradient", "Hessian-vector product", "stop-gradient", "planning is linear")
    assert [line.partition(";")[0] for line in done.stdout.splitlines()] == [
        f"ok: {check}" for check in checks
    ]


def test_inlined_ctes_are_caught() -> None:
    """A backend that cannot hold the tables of CTEs makes ddx plan each statement whole."""
    spec = importlib.util.spec_from_file_location("ddx_smoke", _SMOKE)
    assert spec is not None and spec.loader is not None
    smoke = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(smoke)

    class WithoutCteTables(smoke.CountingBackend):
        def materialize(self, name: str, plan: bytes) -> None:
            if "_cte_" in name:
                raise RuntimeError("no such table")
            super().materialize(name, plan)

    with pytest.raises(smoke.SmokeFailure, match="planning is not linear"):
        smoke.check_planning(WithoutCteTables)

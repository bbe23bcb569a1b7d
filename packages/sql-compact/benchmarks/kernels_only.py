"""The modules of `sql_compact.kernels` without the rest of the package.

They need torch, numpy and triton only, so the benchmarks run where nothing else is installed.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "sql_compact"

# A bare package object finds the kernels without running `sql_compact/__init__.py`. It must exist
# as soon as a worker process imports this file, because the worker then unpickles configurations.
if "sql_compact" not in sys.modules:
    sys.modules["sql_compact"] = types.ModuleType("sql_compact")
    sys.modules["sql_compact"].__path__ = [str(PACKAGE)]


def load(name: str) -> Any:
    """A module of `sql_compact.kernels`."""
    return importlib.import_module(f"sql_compact.kernels.{name}")

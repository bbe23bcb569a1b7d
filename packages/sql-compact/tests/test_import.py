"""Importing the package brings in torch, and leaves what takes long until a query needs it."""

from __future__ import annotations

import subprocess
import sys

_LATER = (
    "datafusion",
    "ddxdb",
    "opt_einsum",
    "pandas",
    "triton",
    "xarray",
    "xarray_sql",
    "torch._dynamo",
    "torch._inductor",
)


def _brought_in(code: str) -> set[str]:
    """Those of `_LATER` that are loaded after the code and were not by torch alone."""
    script = f"import sys, torch\nearlier = set(sys.modules)\n{code}\n"
    script += f"print(*({set(_LATER)!r} & (set(sys.modules) - earlier)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_the_import_leaves_the_rest_until_it_is_needed() -> None:
    assert _brought_in("import sql_compact") == set()


def test_a_query_without_xarray_needs_datafusion_alone() -> None:
    """Neither torch's compiler nor xarray is part of a query of numpy arrays on the CPU."""
    query = (
        "import numpy, sql_compact\n"
        "context = sql_compact.CompactContext()\n"
        "context.register('x', numpy.ones(3), dims=('i',), column='val')\n"
        "assert context.sql('SELECT SUM(val) AS s FROM x').to_arrow()['s'].to_pylist() == [3.0]"
    )
    brought = _brought_in(query)
    assert "datafusion" in brought
    assert brought.isdisjoint({"xarray", "xarray_sql", "torch._dynamo", "torch._inductor"})

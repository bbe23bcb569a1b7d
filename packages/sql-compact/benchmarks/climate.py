"""Climate queries as tensor programs, on DataFusion's rows, and in xarray.

    python benchmarks/climate.py --times 1460 --lats 73 --lons 144 --out record.json

Each answer is checked against xarray's. Times are the best of ``--repeat`` runs, after a first
one that is reported by itself: it plans the query and builds its program. Peaks are of a further
run, beside what the process held before it. Rows are read by xarray-sql (where a Dataset is one
group of dims), chunk by chunk.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sql_compact import CompactContext

_QUERIES = Path(__file__).parents[1] / "tests" / "climate" / "queries.py"


def _queries() -> Any:
    spec = importlib.util.spec_from_file_location("climate_queries", _QUERIES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _timed(run: Callable[[], Any], repeat: int) -> tuple[Any, float, float]:
    """The result, the first run's seconds, and the best of the others (or the first)."""
    seconds = []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - start)
    return result, seconds[0], min(seconds[1:] or seconds)


def _peak(run: Callable[[], Any]) -> int | None:
    """The most memory that a run takes beside what was there before, in bytes (Linux)."""
    status = Path("/proc/self/status")
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None

    def field(name: str) -> int:
        line = next(line for line in status.read_text().split("\n") if line.startswith(name))
        return int(line.split()[1]) * 1024

    before = field("VmRSS")
    run()
    return field("VmHWM") - before


def measure(times: int, lats: int, lons: int, repeat: int, rows: bool) -> dict[str, Any]:
    """Seconds of every query in each engine."""
    queries = _queries()
    data = queries.datasets(times, lats, lons)
    compact, plain = CompactContext(), CompactContext()
    for name, dataset in data.items():
        compact.register(name, dataset, domain=queries.domains(dataset))
        plain.register(name, dataset, domain=queries.domains(dataset), nan_is_null=True)
    results = {}
    for name, case in queries.CASES.items():
        answer, _, xarray_s = _timed(lambda c=case: c.answer(data).load(), repeat)
        result, first_s, compact_s = _timed(
            lambda c=case: compact.sql(c.sql, engine="compact").to_xarray(), repeat
        )
        ours = result.transpose(*case.dims).sel({d: answer[d].values for d in case.dims})
        error = float(np.abs(ours.values - answer.transpose(*case.dims).values).max())
        peak = _peak(lambda c=case: compact.sql(c.sql, engine="compact").to_xarray())
        entry = {
            "compact_peak_bytes": peak,
            "xarray_s": xarray_s,
            "compact_first_s": first_s,
            "compact_s": compact_s,
            "largest_difference": error,
            "memory": compact.explain(case.sql).split("\n")[0].split("memory: ")[1],
        }
        if rows:
            _, _, rows_s = _timed(
                lambda c=case: plain.sql(c.sql, engine="rows").to_arrow(), max(0, repeat - 2)
            )
            entry |= {"rows_s": rows_s, "rows_over_compact": rows_s / compact_s}
        results[name] = entry
        shown = ", ".join(f"{k} {v:.4g}" for k, v in entry.items() if isinstance(v, float))
        print(f"{name}: {shown}", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=1460)
    parser.add_argument("--lats", type=int, default=73)
    parser.add_argument("--lons", type=int, default=144)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=None, help="torch's threads")
    parser.add_argument("--no-rows", action="store_true", help="leave DataFusion's rows out")
    parser.add_argument("--note", default="", help="kept in the record")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    results = measure(
        options.times, options.lats, options.lons, options.repeat, not options.no_rows
    )
    record = {
        "what": "seconds; best of the runs after the first",
        "shape": {"time": options.times, "lat": options.lats, "lon": options.lons},
        "repeat": options.repeat,
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "note": options.note,
        "queries": results,
    }
    if options.out:
        options.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Check and time the fused attention kernels on one CUDA device.

    python packages/sql-compact/benchmarks/attention.py [--skip-checks] [--skip-sweep]
        [--seconds 200] [--record FILE.json]

Needs torch and triton only. First every kernel is checked against float64 torch with the same
dropout bits; then forward and backward are timed beside torch's scaled_dot_product_attention, over
lists of block configurations, and once more with the fastest of them. Times are microseconds of
one call in a CUDA graph of many.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import attention_checks as checks
import attention_sweep as sweep
import torch
import triton
from kernels_only import load

Shape = tuple[int, int, int, int]
Job = tuple[str, Any]
Buffers = dict[str, torch.Tensor]
SHAPES: tuple[Shape, ...] = (
    (12, 6, 256, 64),
    (64, 6, 256, 64),
    (16, 6, 1024, 64),
    (1, 6, 4096, 64),
)
CHECKED: Shape = (2, 6, 256, 64)
MASKS = ((12, 256, 384), (64, 256, 384), (12, 6, 256, 256))
DTYPES = ("bfloat16", "float32")
DIRECTIONS = ("forward", "backward")
KEEPS = ("stored", "drawn", "all")
PARTS = ("forward", "both", "keys", "queries")
CALLS_PER_GRAPH = 20
REPLAYS = 7
WORKERS = max(1, min(14, (os.cpu_count() or 2) - 1))
MISSING = float("nan")


@dataclass(frozen=True, slots=True)
class Trial:
    """One configuration on one shape.

    Attributes:
        part: "forward", "backward" (all of it), or a launch of it: "both", "keys", "queries".
        keep: as in :class:`attention_checks.Case`.
    """

    part: str
    dtype: str
    shape: Shape
    keep: str
    config: Any


def chosen(direction: str, dtype: str, shape: Shape) -> Any:
    config = load("attention_config")
    size = getattr(torch, dtype).itemsize
    return getattr(config, f"{direction}_config")(size, shape[3], shape[2])


# Calls to time -----------------------------------------------------------------------------------


def buffers(dtype: str, shape: Shape) -> Buffers:
    q, k, v, dy = checks.inputs(dtype, shape, "qkv")
    batch, heads, length, dim = shape
    dqkv = torch.empty(batch, length, 3, heads, dim, device="cuda", dtype=q.dtype)
    dq, dk, dv = dqkv.permute(2, 0, 3, 1, 4).unbind(0)
    lse = torch.empty(q.shape[:3], device="cuda")
    return {
        "q": q, "k": k, "v": v, "dy": dy, "y": torch.empty_like(dy), "lse": lse,
        "dq": dq, "dk": dk, "dv": dv,
    }  # fmt: skip


def kernel_call(trial: Trial, x: Buffers) -> Callable[[], Any]:
    launch = load("attention_launch")
    kept = checks.dropout(trial.keep, trial.shape, True)
    common = (kept, trial.shape[3] ** -0.5, True, "tf32")
    qkv, gradients = (x["q"], x["k"], x["v"]), (x["dq"], x["dk"], x["dv"])

    def forward(config: Any = None) -> None:
        launch.launch_forward(*qkv, x["y"], x["lse"], *common, config)

    if trial.part == "forward":
        return lambda: forward(trial.config)
    forward()
    if trial.part == "backward":
        return lambda: launch.launch_backward(
            x["dy"], x["y"], x["lse"], *qkv, *gradients, *common, trial.config
        )
    terms = launch.launch_row_terms(x["dy"], x["y"], x["lse"], kept)
    return lambda: launch.launch_backward_part(
        trial.part, trial.config, x["dy"], terms, *qkv, *gradients, *common
    )


def row_terms_call(x: Buffers, shape: Shape) -> Callable[[], Any]:
    launch = load("attention_launch")
    kept = checks.dropout("stored", shape, True)
    return lambda: launch.launch_row_terms(x["dy"], x["y"], x["lse"], kept)


def keep_bits_call(shape: Shape, tile: tuple[int, int, int]) -> Callable[[], Any]:
    bits = load("keep_bits")
    out = torch.empty(bits.bits_shape(*shape[:3]), dtype=torch.int32, device="cuda")
    stream = checks.scalars()
    return lambda: bits.launch_keep_bits(out, *stream, checks.SITE, shape[2], True, tile)


def mask_call(shape: tuple[int, ...], groups: int) -> Callable[[], Any]:
    masks = load("dropout")
    out = torch.empty(shape, dtype=torch.bool, device="cuda")
    stream = checks.scalars()
    return lambda: masks.launch_dropout_mask(out, *stream, checks.SITE, groups)


def sdpa_call(direction: str, dtype: str, x: Buffers, p: float) -> Callable[[], Any]:
    """torch's own kernel: flash attention for bfloat16, memory-efficient for float32 (tf32)."""
    torch.backends.cuda.matmul.allow_tf32 = True
    qkv, aten = (x["q"], x["k"], x["v"]), torch.ops.aten

    def flash_forward() -> Any:
        y, lse, *middle, seed, offset, _ = aten._scaled_dot_product_flash_attention(
            *qkv, p, True, False
        )
        return y, lse, middle, seed, offset

    def flash_backward(y: Any, lse: Any, middle: Any, seed: Any, offset: Any) -> None:
        aten._scaled_dot_product_flash_attention_backward(
            x["dy"], *qkv, y, lse, *middle, p, True, seed, offset
        )

    def efficient_forward() -> Any:
        y, lse, seed, offset = aten._scaled_dot_product_efficient_attention(
            *qkv, None, True, p, True
        )
        return y, lse, (), seed, offset

    def efficient_backward(y: Any, lse: Any, middle: Any, seed: Any, offset: Any) -> None:
        aten._scaled_dot_product_efficient_attention_backward(
            x["dy"], *qkv, None, y, lse, seed, offset, p, [True, True, True, False], True
        )

    forward, backward_of = (
        (flash_forward, flash_backward)
        if dtype == "bfloat16"
        else (efficient_forward, efficient_backward)
    )
    if direction == "forward":
        return forward
    saved: dict[bool, Any] = {}

    def backward() -> None:
        # The generator's state lies elsewhere in a captured graph than outside, so a backward
        # call needs a forward call of its own kind. It costs a 20th of a forward call.
        capturing = torch.cuda.is_current_stream_capturing()
        if capturing not in saved:
            saved[capturing] = forward()
        backward_of(*saved[capturing])

    return backward


def graph_time(call: Callable[[], Any]) -> float:
    """Median microseconds of one call, replayed from a CUDA graph of many."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS_PER_GRAPH):
            call()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(REPLAYS):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) * 1e3)
    return round(statistics.median(times) / CALLS_PER_GRAPH, 2)


# Checks in parallel ------------------------------------------------------------------------------


def work(job: tuple[int, Job]) -> tuple[int, bool, str]:
    """Run one check in a worker; its kernels stay in triton's cache on disk."""
    index, (kind, payload) = job
    try:
        if kind == "case":
            return index, *checks.check_case(payload)
        run = {"bits": checks.check_bits, "operators": checks.check_operators}[kind]
        return index, *run()
    except Exception as error:
        # One configuration that does not fit must not hide the others' results.
        return index, False, f"{kind} {payload}: {type(error).__name__}: {str(error)[:300]}"


def run_jobs(jobs: list[Job], seconds: float) -> dict[int, tuple[bool, str]]:
    """Results of the jobs that end in time by their position, printed as they come."""
    results: dict[int, tuple[bool, str]] = {}
    deadline = time.monotonic() + seconds
    with multiprocessing.get_context("spawn").Pool(WORKERS) as pool:
        pending = pool.imap_unordered(work, enumerate(jobs), chunksize=1)
        for _ in jobs:
            try:
                index, good, line = pending.next(max(0.1, deadline - time.monotonic()))
            except multiprocessing.TimeoutError:
                print(f"FAIL {len(jobs) - len(results)} jobs did not end in {seconds:.0f} s")
                break
            results[index] = (good, line)
            print("ok  " if good else "FAIL", line, flush=True)
    return results


def sweep_trials() -> list[Trial]:
    """Every configuration to try, without a shape of its own."""
    return [
        Trial(part, dtype, CHECKED, keep, config)
        for part in PARTS
        for dtype in DTYPES
        for keep in KEEPS
        for config in sweep.configs(part, dtype, keep)
    ]


def case_of(trial: Trial) -> checks.Case:
    """The check of one configuration; the other launch of a pair is the first of its list."""
    case = checks.Case(trial.dtype, trial.shape, keep=trial.keep)
    if trial.part == "forward":
        return replace(case, forward=trial.config)
    if trial.part == "both":
        return replace(case, backward=trial.config)
    first = {p: sweep.configs(p, trial.dtype, "stored")[0] for p in ("keys", "queries")}
    first[trial.part] = trial.config
    return replace(case, backward=replace(first["keys"], queries=first["queries"]))


# Reports -----------------------------------------------------------------------------------------


class Timings:
    """Timed calls, kept for the record, and the fastest configuration of every launch."""

    def __init__(self, deadline: float, wrong: set[tuple[str, str, str, Any]]) -> None:
        self.deadline = deadline
        self.wrong = wrong
        self.rows: list[dict[str, Any]] = []
        self.best: dict[tuple[str, str, Shape], tuple[float, Any]] = {}

    def time(self, call: Callable[[], Callable[[], Any]], **labels: Any) -> float:
        """Microseconds, or NaN if the call fails or time is up."""
        if time.monotonic() > self.deadline:
            return MISSING
        try:
            microseconds = graph_time(call())
        except Exception as error:
            # A configuration that does not fit the device is a result too.
            print(f"    {labels}: {type(error).__name__} {str(error)[:120]}", flush=True)
            return MISSING
        self.rows.append({**labels, "microseconds": microseconds})
        return microseconds

    def time_trial(self, trial: Trial, x: Buffers, **labels: Any) -> float:
        """Microseconds of a configuration, or NaN if its check failed."""
        if (trial.part, trial.dtype, trial.keep, trial.config) in self.wrong:
            return MISSING
        labels |= {"kernel": trial.part, "dtype": trial.dtype, "shape": trial.shape}
        labels |= {"keep": trial.keep, "config": checks.describe(trial.config)}
        microseconds = self.time(lambda: kernel_call(trial, x), **labels)
        key = (trial.part, trial.dtype, trial.shape)
        known = self.best.get(key, (math.inf, None))
        if trial.keep == "stored" and microseconds < known[0]:
            self.best[key] = (microseconds, trial.config)
        return microseconds

    def fastest(self, direction: str, dtype: str, shape: Shape) -> Any:
        """The fastest forward or backward configuration, or None if none was timed."""
        if direction == "forward":
            return self.best.get(("forward", dtype, shape), (0.0, None))[1]
        found = {p: self.best.get((p, dtype, shape)) for p in ("both", "keys", "queries")}
        if None in found.values():
            return None
        if found["both"][0] <= found["keys"][0] + found["queries"][0]:
            return found["both"][1]
        return replace(found["keys"][1], queries=found["queries"][1])


def report_shape(shape: Shape, dtype: str, timings: Timings) -> None:
    """The table's choices beside torch's kernels."""
    x = buffers(dtype, shape)
    size = "x".join(map(str, shape))
    forward_times: dict[float, float] = {}
    for direction in DIRECTIONS:
        times = []
        for keep in KEEPS:
            trial = Trial(direction, dtype, shape, keep, chosen(direction, dtype, shape))
            times.append(timings.time_trial(trial, x))
        for p in (checks.DROPOUT_P, 0.0):
            labels = {"kernel": f"sdpa {direction}", "dtype": dtype, "shape": shape, "p": p}
            elapsed = timings.time(lambda d=direction, p=p: sdpa_call(d, dtype, x, p), **labels)
            if direction == "forward":
                forward_times[p] = elapsed
            else:
                elapsed -= forward_times[p] / CALLS_PER_GRAPH
            times.append(elapsed)
        print(
            f"{dtype:8} {size:12} {direction:8} stored {times[0]:7.1f} drawn {times[1]:7.1f} "
            f"p=0 {times[2]:7.1f} | sdpa {times[3]:7.1f} p=0 {times[4]:7.1f}",
            flush=True,
        )
    labels = {"kernel": "row terms", "dtype": dtype, "shape": shape}
    elapsed = timings.time(lambda: row_terms_call(x, shape), **labels)
    print(f"{dtype:8} {size:12} row terms of backward {elapsed:.1f}", flush=True)


def report_sweep(shape: Shape, dtype: str, timings: Timings) -> None:
    x = buffers(dtype, shape)
    for part in PARTS:
        for keep in KEEPS[:2]:
            timed = []
            for config in sweep.configs(part, dtype, keep):
                trial = Trial(part, dtype, shape, keep, config)
                elapsed = timings.time_trial(trial, x, sweep=True)
                timed.append((elapsed, checks.describe(config)))
            timed = sorted(pair for pair in timed if pair[0] == pair[0])
            print(f"  {dtype} {'x'.join(map(str, shape))} {part} {keep}: ", end="")
            print(" | ".join(f"{t:.1f} {name}" for t, name in timed), flush=True)
    for direction in DIRECTIONS:
        config = timings.fastest(direction, dtype, shape)
        if config is None:
            continue
        times = [
            timings.time_trial(Trial(direction, dtype, shape, keep, config), x, tuned=True)
            for keep in KEEPS
        ]
        print(
            f"tuned {dtype:8} {'x'.join(map(str, shape)):12} {direction:8} "
            f"stored {times[0]:7.1f} drawn {times[1]:7.1f} p=0 {times[2]:7.1f} "
            f"[{checks.describe(config)}]",
            flush=True,
        )


def report_bits(timings: Timings, tiles: list[tuple[int, int, int]]) -> None:
    for shape in SHAPES:
        timed = []
        for tile in tiles:
            labels = {"kernel": "keep bits", "shape": shape, "config": str(tile)}
            elapsed = timings.time(lambda s=shape, t=tile: keep_bits_call(s, t), **labels)
            timed.append(f"{elapsed:.1f} {tile}")
        print(f"keep bits {shape}: " + " | ".join(timed), flush=True)
    for sizes in MASKS:
        timed = []
        for groups in sweep.MASK_GROUPS:
            labels = {"kernel": "mask", "shape": sizes, "config": str(groups)}
            elapsed = timings.time(lambda s=sizes, g=groups: mask_call(s, g), **labels)
            timed.append(f"{elapsed:.2f} {groups}")
        print(f"dropout mask {sizes}: " + " | ".join(timed), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--skip-checks", action="store_true", help="only time")
    parser.add_argument("--skip-sweep", action="store_true", help="time the table's choice only")
    parser.add_argument("--seconds", type=float, default=200.0, help="stop timing after this long")
    parser.add_argument("--record", type=Path, help="write results as JSON")
    options = parser.parse_args()
    began = time.monotonic()
    # Workers are processes already; inductor needs no pool of its own in each.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    jobs: list[Job] = []
    if not options.skip_checks:
        jobs += [("operators", None), ("bits", None), *(("case", c) for c in checks.cases())]
    trials = [] if options.skip_sweep else sweep_trials()
    first_trial = len(jobs)
    jobs += [("case", case_of(trial)) for trial in trials]
    results = run_jobs(jobs, options.seconds * 0.6)
    passed = [results.get(index, (False, ""))[0] for index in range(len(jobs))]
    wrong = {
        (trial.part, trial.dtype, trial.keep, trial.config)
        for trial, good in zip(trials, passed[first_trial:], strict=True)
        if not good
    }
    print(
        f"{len(jobs)} checks, {passed.count(False)} failed; torch {torch.__version__}, "
        f"{torch.cuda.get_device_name()}, {time.monotonic() - began:.0f} s",
        flush=True,
    )
    timings = Timings(began + options.seconds, wrong)
    try:
        for dtype in DTYPES:
            for shape in SHAPES:
                report_shape(shape, dtype, timings)
        report_bits(timings, [load("keep_bits").TILE] if options.skip_sweep else sweep.KEEP_BITS)
        if not options.skip_sweep:
            for dtype in DTYPES:
                for shape in SHAPES:
                    report_sweep(shape, dtype, timings)
    finally:
        if options.record:
            lines = [{"good": good, "line": line} for _, (good, line) in sorted(results.items())]
            record = {
                "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
                "torch": torch.__version__,
                "triton": triton.__version__,
                "cuda": torch.version.cuda,
                "device": torch.cuda.get_device_name(),
                "checks": lines,
                "timings": timings.rows,
            }
            options.record.write_text(json.dumps(record, indent=0) + "\n")
    print(f"total {time.monotonic() - began:.0f} s")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())

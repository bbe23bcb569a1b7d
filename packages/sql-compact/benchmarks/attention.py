"""Check and time the fused attention kernels on one CUDA device.

    python packages/sql-compact/benchmarks/attention.py [--skip-checks] [--skip-sweep]
        [--seconds 200] [--record FILE.json]

Needs torch and triton only. First every kernel is checked against float64 torch with the same
dropout bits; then forward and backward are timed beside torch's scaled_dot_product_attention, and
over lists of block configurations. Times are microseconds of one call in a CUDA graph of many.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attention_checks as checks
import attention_sweep as sweep
import torch
import triton
from kernels_only import load

Shape = tuple[int, int, int, int]
Job = tuple[str, Any]
SHAPES: tuple[Shape, ...] = (
    (12, 6, 256, 64),
    (64, 6, 256, 64),
    (16, 6, 1024, 64),
    (1, 6, 4096, 64),
)
MASKS = ((12, 256, 384), (64, 256, 384), (12, 6, 256, 256))
DTYPES = ("bfloat16", "float32")
DIRECTIONS = ("forward", "backward")
CALLS_PER_GRAPH = 20
REPLAYS = 7
WORKERS = max(1, min(14, (os.cpu_count() or 2) - 1))


@dataclass(frozen=True, slots=True)
class Trial:
    """One configuration on one shape; `keep` as in :class:`attention_checks.Case`."""

    direction: str
    dtype: str
    shape: Shape
    keep: str
    config: Any


def describe(config: Any) -> str:
    if hasattr(config, "block_m"):
        text = f"M{config.block_m} N{config.block_n}"
    else:
        text = f"O{config.outer} I{config.inner}"
    text += f" w{config.num_warps} s{config.num_stages}" + (" split" if config.split else "")
    text += "" if getattr(config, "together", True) else " two"
    return text + (f" r{config.max_registers}" if config.max_registers else "")


def chosen(direction: str, dtype: str, shape: Shape) -> Any:
    config = load("attention_config")
    size = getattr(torch, dtype).itemsize
    return getattr(config, f"{direction}_config")(size, shape[3], shape[2])


# Calls to time -----------------------------------------------------------------------------------


def buffers(dtype: str, shape: Shape) -> dict[str, torch.Tensor]:
    q, k, v, dy = checks.inputs(dtype, shape, "qkv")
    batch, heads, length, dim = shape
    dqkv = torch.empty(batch, length, 3, heads, dim, device="cuda", dtype=q.dtype)
    dq, dk, dv = dqkv.permute(2, 0, 3, 1, 4).unbind(0)
    lse = torch.empty(q.shape[:3], device="cuda")
    return {
        "q": q, "k": k, "v": v, "dy": dy, "y": torch.empty_like(dy), "lse": lse,
        "dq": dq, "dk": dk, "dv": dv,
    }  # fmt: skip


def kernel_call(trial: Trial, x: dict[str, torch.Tensor]) -> Callable[[], Any]:
    launch = load("attention_launch")
    kept = checks.dropout(trial.keep, trial.shape, True)
    common = (kept, trial.shape[3] ** -0.5, True, "tf32")
    qkv = (x["q"], x["k"], x["v"])
    forward_config = trial.config if trial.direction == "forward" else None

    def forward() -> None:
        launch.launch_forward(*qkv, x["y"], x["lse"], *common, forward_config)

    if trial.direction == "forward":
        return forward
    forward()

    def backward() -> None:
        launch.launch_backward(
            x["dy"], x["y"], x["lse"], *qkv, x["dq"], x["dk"], x["dv"], *common, trial.config
        )

    return backward


def keep_bits_call(shape: Shape, tile: tuple[int, int, int]) -> Callable[[], Any]:
    bits = load("keep_bits")
    out = torch.empty(bits.bits_shape(*shape[:3]), dtype=torch.int32, device="cuda")
    stream = checks.scalars()
    return lambda: bits.launch_keep_bits(out, *stream, checks.SITE, shape[2], True, tile)


def mask_call(shape: tuple[int, ...]) -> Callable[[], Any]:
    masks = load("dropout")
    stream = checks.scalars()
    return lambda: masks.dropout_mask(*stream, checks.SITE, shape)


def sdpa_call(
    direction: str, dtype: str, x: dict[str, torch.Tensor], p: float
) -> Callable[[], Any]:
    """torch's own kernel: flash attention for bfloat16, memory-efficient for float32 (tf32)."""
    torch.backends.cuda.matmul.allow_tf32 = True
    qkv, aten = (x["q"], x["k"], x["v"]), torch.ops.aten
    if dtype == "bfloat16":

        def forward() -> Any:
            return aten._scaled_dot_product_flash_attention(*qkv, p, True, False)

        y, lse, cq, ck, mq, mk, seed, offset, _ = forward()

        def backward() -> Any:
            return aten._scaled_dot_product_flash_attention_backward(
                x["dy"], *qkv, y, lse, cq, ck, mq, mk, p, True, seed, offset
            )

    else:

        def forward() -> Any:
            return aten._scaled_dot_product_efficient_attention(*qkv, None, True, p, True)

        y, lse, seed, offset = forward()

        def backward() -> Any:
            return aten._scaled_dot_product_efficient_attention_backward(
                x["dy"], *qkv, None, y, lse, seed, offset, p, [True, True, True, False], True
            )

    return forward if direction == "forward" else backward


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


# Parallel compilation ----------------------------------------------------------------------------


def work(job: tuple[int, Job]) -> tuple[int, bool, str]:
    """Run one job in a worker: a check, or a first call that leaves its kernels in the cache."""
    index, (kind, payload) = job
    try:
        if kind == "case":
            return index, *checks.check_case(payload)
        if kind == "compile":
            kernel_call(payload, buffers(payload.dtype, payload.shape))()
            torch.cuda.synchronize()
            return index, True, ""
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
            if line:
                print("ok  " if good else "FAIL", line, flush=True)
    return results


# Reports -----------------------------------------------------------------------------------------


class Timings:
    """Timed calls: each is measured once, printed and kept for the record."""

    def __init__(self, deadline: float, broken: set[tuple[str, str, str, Any]]) -> None:
        self.deadline = deadline
        self.broken = broken
        self.rows: list[dict[str, Any]] = []

    def time_trial(self, trial: Trial, x: dict[str, torch.Tensor], **labels: Any) -> float:
        """Microseconds of a configuration, or NaN if it did not run before."""
        if (trial.direction, trial.dtype, trial.keep, trial.config) in self.broken:
            return float("nan")
        labels |= {"kernel": trial.direction, "dtype": trial.dtype, "shape": trial.shape}
        labels |= {"keep": trial.keep, "config": describe(trial.config)}
        return self.time(lambda: kernel_call(trial, x), **labels)

    def time(self, call: Callable[[], Callable[[], Any]], **labels: Any) -> float:
        """Microseconds, or NaN if the call fails or time is up."""
        if time.monotonic() > self.deadline:
            return float("nan")
        try:
            microseconds = graph_time(call())
        except Exception as error:
            # A configuration that does not fit the device is a result too.
            print(f"    {labels}: {type(error).__name__} {str(error)[:120]}", flush=True)
            return float("nan")
        self.rows.append({**labels, "microseconds": microseconds})
        return microseconds


def report_shape(shape: Shape, dtype: str, timings: Timings) -> None:
    """The table's choices beside torch's kernels."""
    x = buffers(dtype, shape)
    size = "x".join(map(str, shape))
    for direction in DIRECTIONS:
        times = []
        for keep in ("stored", "drawn", "all"):
            trial = Trial(direction, dtype, shape, keep, chosen(direction, dtype, shape))
            times.append(timings.time_trial(trial, x))
        for p in (checks.DROPOUT_P, 0.0):
            labels = {"kernel": f"sdpa {direction}", "dtype": dtype, "shape": shape, "p": p}
            times.append(timings.time(lambda d=direction, p=p: sdpa_call(d, dtype, x, p), **labels))
        print(
            f"{dtype:8} {size:12} {direction:8} stored {times[0]:7.1f} drawn {times[1]:7.1f} "
            f"p=0 {times[2]:7.1f} | sdpa {times[3]:7.1f} p=0 {times[4]:7.1f}",
            flush=True,
        )


def report_sweep(shape: Shape, dtype: str, timings: Timings) -> None:
    x = buffers(dtype, shape)
    for direction in DIRECTIONS:
        for keep in ("stored", "drawn"):
            timed = []
            for config in sweep.configs(direction, dtype, keep):
                trial = Trial(direction, dtype, shape, keep, config)
                timed.append((timings.time_trial(trial, x, sweep=True), describe(config)))
            timed = sorted(pair for pair in timed if pair[0] == pair[0])
            print(f"  {dtype} {'x'.join(map(str, shape))} {direction} {keep}:")
            print("    " + " | ".join(f"{t:.1f} {name}" for t, name in timed), flush=True)


def report_bits(timings: Timings, tiles: list[tuple[int, int, int]]) -> None:
    for shape in SHAPES:
        timed = []
        for tile in tiles:
            labels = {"kernel": "keep bits", "shape": shape, "config": str(tile)}
            timed.append(
                (timings.time(lambda s=shape, t=tile: keep_bits_call(s, t), **labels), tile)
            )
        print(f"keep bits {shape}: " + " | ".join(f"{t:.1f} {tile}" for t, tile in timed))
    for sizes in MASKS:
        elapsed = timings.time(lambda s=sizes: mask_call(s), kernel="mask", shape=sizes)
        print(f"dropout mask {sizes}: {elapsed:.1f}", flush=True)


def compile_jobs(with_sweep: bool) -> list[Job]:
    jobs: list[Job] = []
    for dtype in DTYPES:
        for direction in DIRECTIONS:
            for keep in ("stored", "drawn", "all"):
                picks = {chosen(direction, dtype, shape) for shape in SHAPES}
                if with_sweep:
                    picks |= set(sweep.configs(direction, dtype, keep))
                order = sorted(picks, key=describe)
                jobs += [("compile", Trial(direction, dtype, SHAPES[0], keep, c)) for c in order]
    return jobs


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
    expected = len(jobs)
    jobs += compile_jobs(not options.skip_sweep)
    results = run_jobs(jobs, options.seconds * 0.6)
    failed = sum(not results.get(index, (False, ""))[0] for index in range(expected))
    broken = {
        (trial.direction, trial.dtype, trial.keep, trial.config)
        for index, (kind, trial) in enumerate(jobs)
        if kind == "compile" and not results.get(index, (False, ""))[0]
    }
    print(
        f"{expected} checks, {failed} failed; torch {torch.__version__}, "
        f"{torch.cuda.get_device_name()}, {time.monotonic() - began:.0f} s",
        flush=True,
    )
    timings = Timings(began + options.seconds, broken)
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
            record = {
                "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
                "torch": torch.__version__,
                "triton": triton.__version__,
                "cuda": torch.version.cuda,
                "device": torch.cuda.get_device_name(),
                "checks": [
                    {"good": good, "line": line}
                    for _, (good, line) in sorted(results.items())
                    if line
                ],
                "timings": timings.rows,
            }
            options.record.write_text(json.dumps(record, indent=0) + "\n")
    print(f"total {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

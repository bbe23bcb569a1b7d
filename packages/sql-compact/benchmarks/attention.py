"""Check and time the fused attention kernels on one CUDA device.

    python packages/sql-compact/benchmarks/attention.py [--skip-checks] [--skip-sweep]

Needs torch and triton only: the kernels are imported without the rest of the package. First every
kernel is checked against float64 torch with the same dropout bits; then forward and backward are
timed, over a list of block configurations, beside torch's scaled_dot_product_attention.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import statistics
import sys
import time
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "sql_compact"
SHAPES = ((12, 6, 256, 64), (64, 6, 256, 64), (16, 6, 1024, 64), (1, 6, 4096, 64))
DROPOUT_P = 0.2
CALLS_PER_GRAPH = 20
REPLAYS = 7
WORKERS = max(1, min(12, (os.cpu_count() or 2) - 2))


# A bare package object finds the kernels without running `sql_compact/__init__.py`. It must exist
# as soon as a worker imports this file, because the worker then unpickles configurations.
sys.modules["sql_compact"] = types.ModuleType("sql_compact")
sys.modules["sql_compact"].__path__ = [str(PACKAGE)]


def load(name: str) -> Any:
    """A module of `sql_compact.kernels`."""
    return importlib.import_module(f"sql_compact.kernels.{name}")


# Checks ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """One correctness check: `layout` is "qkv" (one buffer) or "split" (three, odd strides)."""

    dtype: str
    shape: tuple[int, int, int, int]
    causal: bool = True
    dropout: bool = True
    precision: str = "tf32"
    layout: str = "qkv"
    out_dtype: str | None = None
    config: Any = None  # BackwardConfig to use instead of the table's


def cases() -> list[Case]:
    config = load("attention_config")
    return [
        *(Case("bfloat16", (2, 3, t, 64)) for t in (1, 17, 64, 100, 256, 257, 1000, 1024)),
        *(Case("float32", (2, 3, t, 64)) for t in (1, 17, 256, 257, 1000, 1024)),
        *(Case("bfloat16", (2, 2, 256, d)) for d in (16, 32, 48, 80, 128)),
        *(Case("float32", (2, 2, 256, d)) for d in (16, 32, 48, 80, 128)),
        *(Case("bfloat16", (1, 2, 1024, d)) for d in (16, 128)),
        *(Case("float32", (1, 2, 1024, d)) for d in (16, 128)),
        Case("bfloat16", (1, 2, 4096, 64)),
        Case("float32", (1, 2, 4096, 64)),
        *(Case(d, (2, 3, 256, 64), dropout=False) for d in ("bfloat16", "float32")),
        *(Case("bfloat16", (2, 3, t, 64), causal=False) for t in (256, 1001)),
        *(Case("float32", (2, 3, t, 64), causal=False) for t in (256, 1001)),
        *(Case(d, (2, 3, 321, 64), layout="split") for d in ("bfloat16", "float32")),
        Case("bfloat16", (2, 3, 256, 64), out_dtype="float32"),
        Case("float32", (2, 3, 300, 64), precision="tf32x3"),
        Case("float32", (2, 3, 100, 32), precision="ieee"),
        *(
            Case("bfloat16", (1, 2, 300, 64), config=config.BackwardConfig(*row))
            for row in (
                (128, 32, 4, 2, True, True),
                (128, 64, 8, 2, True, False, False),
                (32, 64, 2, 2, True, False),
            )
        ),
    ]  # fmt: skip


def scalars(step: int = (3 << 32) + 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        torch.tensor(DROPOUT_P, dtype=torch.float64, device="cuda"),
        torch.tensor((7 << 32) + 1337, device="cuda"),
        torch.tensor(step, device="cuda"),
    )


def inputs(case: Case) -> tuple[torch.Tensor, ...]:
    """q, k, v, dy as (B, H, T, D) views."""
    batch, heads, length, dim = case.shape
    dtype = getattr(torch, case.dtype)
    generator = torch.Generator("cuda").manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device="cuda").to(dtype)

    dy = normal(batch, length, heads, dim).transpose(1, 2)
    if case.layout == "qkv":
        return (*normal(batch, length, 3, heads, dim).permute(2, 0, 3, 1, 4).unbind(0), dy)
    q = normal(batch, heads, length, dim + 3)[..., :dim]
    k = normal(length, batch, heads, dim).permute(1, 2, 0, 3)
    v = normal(batch, heads, dim, length).transpose(2, 3)  # unit stride on the wrong axis
    return q, k, v, dy


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    if not bool(torch.isfinite(got).all()):
        return float("inf")
    return float((got.double() - want.double()).norm() / want.double().norm().clamp_min(1e-30))


def run_kernels(case: Case) -> tuple[torch.Tensor, ...]:
    """y, lse, dq, dk, dv by the kernels, into outputs that hold NaN before."""
    launch = load("attention_launch")
    q, k, v, dy = inputs(case)
    batch, heads, length, dim = case.shape
    dropout = launch.Dropout(*scalars(), 4) if case.dropout else None
    out = getattr(torch, case.out_dtype or case.dtype)

    def poisoned(*shape: int, dtype: torch.dtype = out) -> torch.Tensor:
        return torch.full(shape, float("nan"), dtype=dtype, device="cuda")

    y = poisoned(batch, length, heads, dim).transpose(1, 2)
    lse = poisoned(batch, heads, length, dtype=torch.float32)
    dq, dk, dv = poisoned(batch, length, 3, heads, dim).permute(2, 0, 3, 1, 4).unbind(0)
    common = (dropout, dim**-0.5, case.causal, case.precision)
    launch.launch_forward(q, k, v, y, lse, *common)
    launch.launch_backward(dy, y, lse, q, k, v, dq, dk, dv, *common, case.config)
    return y, lse, dq, dk, dv


def limit(case: Case) -> float:
    if case.dtype == "bfloat16":
        return 1e-2
    return {"tf32": 5e-3, "tf32x3": 1e-5, "ieee": 1e-5}[case.precision]


def check_case(case: Case) -> tuple[bool, str]:
    reference = load("attention_reference")
    q, k, v, dy = inputs(case)
    first, second = run_kernels(case), run_kernels(case)
    same = all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    exact = [x.double() for x in (q, k, v)]
    dropout = (*scalars(), 4) if case.dropout else (None, None, None, 0)
    arguments = (*dropout, case.shape[3] ** -0.5, case.causal)
    y, lse = reference.forward(*exact, *arguments)
    want = (y, lse, *reference.backward(dy.double(), y, lse, *exact, *arguments))
    errors = [relative_error(a, b) for a, b in zip(first, want, strict=True)]
    if case.shape[2] == 1:
        # With one key dq and dk are 0; what remains is rounding of delta.
        errors[2] = float(first[2].abs().max()) / 100
        errors[3] = float(first[3].abs().max()) / 100
    good = same and max(errors) < limit(case)
    names = " ".join(
        f"{n} {e:.1e}" for n, e in zip(("y", "lse", "dq", "dk", "dv"), errors, strict=True)
    )
    tag = (
        f"{case.dtype:8} {'x'.join(map(str, case.shape)):13} causal {case.causal:d} "
        f"drop {case.dropout:d} {case.precision:6} {case.layout:5}"
    )
    if case.config is not None:
        tag += f" O{case.config.outer} I{case.config.inner} w{case.config.num_warps}"
    return good, f"{tag}: {names} repeatable {same}"


def check_bits() -> tuple[bool, str]:
    """The forward pass drops exactly the entries that `keep_mask` says, also with WORDS = 4."""
    philox, attention, dropout = load("philox"), load("attention"), load("dropout")
    batch, heads, length, dim, site = 3, 2, 200, 64, 11
    p, seed, step = scalars()
    want = philox.keep_mask(p, seed, step, site, (batch, heads, length, length))
    wrong = int((dropout.dropout_mask(p, seed, step, site, want.shape) != want).sum())
    for shape in ((5,), (1000,), (33, 130), (7, 9, 384), (12, 256, 384)):
        expected = philox.keep_mask(p, seed, step, site, shape)
        wrong += int((dropout.dropout_mask(p, seed, step, site, shape) != expected).sum())
    for dtype in (torch.bfloat16, torch.float32):
        q, k = torch.randn(2, batch, heads, length, dim, device="cuda", dtype=dtype).unbind(0)
        for start in range(0, length, dim):
            v = torch.zeros(batch, heads, length, dim, device="cuda", dtype=dtype)
            width = min(dim, length - start)
            index = torch.arange(width, device="cuda")
            v[:, :, start + index, index] = 1.0
            y, _ = attention.attention(q, k, v, p, seed, step, site, causal=False)
            wrong += int(((y[..., :width] != 0) != want[..., start : start + width]).sum())
    return wrong == 0, f"dropout bits: {wrong} differ from the reference"


def check_operators() -> tuple[bool, str]:
    """Operators under torch.compile and in a CUDA graph replayed with another step."""
    attention = load("attention")
    qkv = torch.randn(2, 256, 3, 6, 64, device="cuda", dtype=torch.bfloat16)
    dy = torch.randn(2, 256, 6, 64, device="cuda", dtype=torch.bfloat16)
    p, seed, step = scalars()

    def both(qkv: torch.Tensor, dy: torch.Tensor, *stream: torch.Tensor) -> torch.Tensor:
        y, lse = attention.attention_qkv(qkv * 2, *stream, 3)
        return attention.attention_qkv_backward(dy + 1, y, lse, qkv * 2, *stream, 3)

    compiled = torch.compile(both, fullgraph=True)
    eager = both(qkv, dy, p, seed, step)
    same_compiled = torch.equal(eager, compiled(qkv, dy, p, seed, step))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = compiled(qkv, dy, p, seed, step)
    step.add_(1)
    graph.replay()
    torch.cuda.synchronize()
    replayed = torch.equal(result, both(qkv, dy, p, seed, step))
    changed = not torch.equal(result, eager)
    good = same_compiled and replayed and changed
    return good, f"operators: compiled {same_compiled}, replayed {replayed}, new mask {changed}"


# Timing ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trial:
    """One configuration on one shape."""

    direction: str
    dtype: str
    shape: tuple[int, int, int, int]
    config: Any
    dropout: bool = True


def describe(config: Any) -> str:
    if hasattr(config, "block_m"):
        text = f"BM{config.block_m} BN{config.block_n}"
    else:
        text = f"O{config.outer} I{config.inner}"
    text += f" w{config.num_warps} s{config.num_stages}" + (" split" if config.split else "")
    text += " fused" if getattr(config, "fused_delta", False) else ""
    text += "" if getattr(config, "together", True) else " two"
    return text + (f" r{config.max_registers}" if config.max_registers else "")


def sweep_configs(direction: str, dtype: str) -> list[Any]:
    config = load("attention_config")
    if direction == "forward":
        rows = {
            "bfloat16": [
                (64, 64, 4, 2, True), (64, 64, 4, 2, False), (64, 64, 4, 3, True),
                (64, 32, 4, 3, True), (64, 128, 4, 2, True), (128, 64, 8, 2, True),
                (128, 64, 8, 3, True), (128, 64, 8, 2, False), (128, 128, 8, 2, True),
                (128, 64, 4, 2, True), (128, 32, 4, 3, True), (64, 64, 4, 2, True, 112),
                (32, 64, 2, 2, True),
            ],
            "float32": [
                (64, 64, 4, 2, True), (64, 64, 4, 2, False), (64, 32, 4, 2, True),
                (64, 32, 4, 2, False), (64, 32, 4, 3, True), (128, 32, 8, 2, True),
                (128, 64, 8, 2, True), (32, 32, 2, 2, True), (32, 64, 2, 2, True),
                (64, 32, 4, 1, True), (64, 64, 4, 2, True, 168),
            ],
        }[dtype]  # fmt: skip
        return [config.ForwardConfig(*row) for row in rows]
    rows = {
        "bfloat16": [
            (64, 64, 4, 2, True, False), (64, 64, 4, 2, False, False), (64, 64, 4, 2, False, True),
            (64, 64, 4, 2, False, False, False), (64, 64, 4, 3, True, False),
            (64, 32, 4, 2, True, False), (64, 32, 4, 2, False, False), (64, 32, 4, 2, False, True),
            (64, 32, 4, 3, True, False), (64, 32, 4, 2, True, False, False),
            (64, 32, 4, 2, False, False, True, 168), (128, 64, 8, 2, True, False),
            (128, 64, 8, 2, False, False), (128, 32, 8, 2, True, False),
            (128, 32, 4, 2, True, False), (128, 64, 8, 2, False, True),
            (64, 64, 4, 1, False, False), (32, 64, 2, 2, False, False),
            (64, 64, 8, 2, False, False), (64, 128, 8, 2, False, False),
        ],
        "float32": [
            (64, 32, 4, 2, True, False), (64, 32, 4, 2, False, False), (64, 32, 4, 2, False, True),
            (64, 32, 4, 1, False, False), (64, 32, 4, 2, False, False, False),
            (64, 64, 4, 2, False, False), (64, 64, 8, 2, False, False),
            (32, 32, 2, 2, False, False), (32, 32, 2, 1, False, False),
            (32, 64, 2, 2, False, False), (128, 32, 8, 2, False, False),
            (64, 16, 4, 2, False, False), (64, 32, 4, 2, False, False, True, 168),
        ],
    }[dtype]  # fmt: skip
    return [config.BackwardConfig(*row) for row in rows]


def tensors(trial: Trial) -> dict[str, Any]:
    case = Case(trial.dtype, trial.shape, dropout=trial.dropout)
    q, k, v, dy = inputs(case)
    y = torch.empty_like(dy)
    lse = torch.empty(q.shape[:3], device="cuda")
    batch, heads, length, dim = trial.shape
    dqkv = torch.empty(batch, length, 3, heads, dim, device="cuda", dtype=q.dtype)
    dq, dk, dv = dqkv.permute(2, 0, 3, 1, 4).unbind(0)
    return {"q": q, "k": k, "v": v, "dy": dy, "y": y, "lse": lse, "dq": dq, "dk": dk, "dv": dv}


def kernel_call(trial: Trial) -> Callable[[], Any]:
    launch = load("attention_launch")
    x = tensors(trial)
    dropout = launch.Dropout(*scalars(), 4) if trial.dropout else None
    common = (dropout, trial.shape[3] ** -0.5, True, "tf32")
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


def sdpa_call(direction: str, dtype: str, shape: tuple[int, ...], p: float) -> Callable[[], Any]:
    """torch's own kernel: flash attention for bfloat16, memory-efficient for float32 (tf32)."""
    torch.backends.cuda.matmul.allow_tf32 = True
    x = tensors(Trial(direction, dtype, tuple(shape), None))
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
    return event_time(graph.replay, REPLAYS) / CALLS_PER_GRAPH


def event_time(call: Callable[[], Any], repeats: int = 20) -> float:
    """Median microseconds between CUDA events around one call."""
    call()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) * 1e3)
    return statistics.median(times)


# Parallel compilation ----------------------------------------------------------------------------


def work(job: tuple[str, Any]) -> tuple[bool, str]:
    """Run one job in a worker: a check, or a first call that leaves its kernels in the cache."""
    kind, payload = job
    try:
        if kind == "case":
            return check_case(payload)
        if kind == "compile":
            kernel_call(payload)()
            torch.cuda.synchronize()
            return True, ""
        return {"bits": check_bits, "operators": check_operators}[kind]()
    except Exception as error:
        # One configuration that does not fit must not hide the others' results.
        name = describe(payload.config) if kind == "compile" else str(payload)
        return False, f"{kind} {name}: {type(error).__name__}: {str(error)[:300]}"


def run_jobs(jobs: Iterable[tuple[str, Any]]) -> list[tuple[bool, str]]:
    with multiprocessing.get_context("spawn").Pool(WORKERS) as pool:
        return pool.map(work, list(jobs), chunksize=1)


def report_shape(shape: tuple[int, int, int, int], dtype: str, sweep: bool) -> None:
    config = load("attention_config")
    size = getattr(torch, dtype).itemsize
    for direction in ("forward", "backward"):
        chosen = getattr(config, f"{direction}_config")(size, shape[3], shape[2])
        trial = Trial(direction, dtype, shape, chosen)
        plain = replace(trial, dropout=False)
        ours, no_dropout = kernel_call(trial), kernel_call(plain)
        theirs = sdpa_call(direction, dtype, shape, DROPOUT_P)
        theirs_plain = sdpa_call(direction, dtype, shape, 0.0)
        print(
            f"{dtype:8} {'x'.join(map(str, shape)):13} {direction:8} us in graph: "
            f"ours {graph_time(ours):7.1f} (p=0 {graph_time(no_dropout):7.1f})  "
            f"sdpa {graph_time(theirs):7.1f} (p=0 {graph_time(theirs_plain):7.1f})  "
            f"eager: ours {event_time(ours):7.1f} sdpa {event_time(theirs):7.1f}  "
            f"[{describe(chosen)}]",
            flush=True,
        )
        if not sweep:
            continue
        timed = []
        for candidate in sweep_configs(direction, dtype):
            try:
                call = kernel_call(replace(trial, config=candidate))
                timed.append((graph_time(call), describe(candidate)))
            except Exception as error:
                print(f"    {describe(candidate)}: {type(error).__name__} {str(error)[:120]}")
        print("    " + " | ".join(f"{t:.1f} {name}" for t, name in sorted(timed)), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--skip-checks", action="store_true", help="only time")
    parser.add_argument("--skip-sweep", action="store_true", help="time the table's choice only")
    options = parser.parse_args()
    began = time.perf_counter()
    # Workers are processes already; inductor needs no pool of its own in each.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    dtypes = ("bfloat16", "float32")
    directions = ("forward", "backward")
    jobs: list[tuple[str, Any]] = []
    if not options.skip_checks:
        jobs += [("operators", None), ("bits", None)]
        jobs += [("case", case) for case in cases()]
    checks = len(jobs)
    if not options.skip_sweep:
        jobs += [
            ("compile", Trial(direction, dtype, SHAPES[0], config))
            for dtype in dtypes
            for direction in directions
            for config in sweep_configs(direction, dtype)
        ]
    results = run_jobs(jobs)
    for good, line in results:
        if line:
            print("ok  " if good else "FAIL", line)
    failed = sum(not good for good, _ in results[:checks])
    print(
        f"{checks} checks, {failed} failed; torch {torch.__version__}, "
        f"{time.perf_counter() - began:.0f} s",
        flush=True,
    )
    for dtype in dtypes:
        for shape in SHAPES:
            report_shape(shape, dtype, not options.skip_sweep)
    print(f"total {time.perf_counter() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

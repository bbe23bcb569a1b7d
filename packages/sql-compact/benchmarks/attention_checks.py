"""Checks of the attention and dropout kernels against float64 torch with the same dropout bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from kernels_only import load

DROPOUT_P = 0.2
SITE = 4


@dataclass(frozen=True, slots=True)
class Case:
    """One correctness check.

    Attributes:
        keep: "stored" reads packed keep bits, "drawn" makes them in the kernels, "all" keeps all.
        layout: "qkv" (one buffer) or "split" (three, odd strides).
        forward, backward: configurations to use instead of the table's.
    """

    dtype: str
    shape: tuple[int, int, int, int]
    causal: bool = True
    keep: str = "stored"
    precision: str = "tf32"
    layout: str = "qkv"
    out_dtype: str | None = None
    scale: float | None = None
    forward: Any = None
    backward: Any = None


def cases() -> list[Case]:
    config = load("attention_config")
    dtypes = ("bfloat16", "float32")
    return [
        *(Case("bfloat16", (2, 3, t, 64)) for t in (1, 17, 100, 256, 257, 1000, 1024)),
        *(Case("float32", (2, 3, t, 64)) for t in (1, 17, 256, 257, 1000, 1024)),
        *(Case(d, (2, 3, t, 64), keep="drawn") for d in dtypes for t in (17, 256, 1000)),
        *(Case(d, (2, 2, 256, n)) for d in dtypes for n in (16, 32, 48, 80, 128)),
        *(Case(d, (1, 2, 1024, n)) for d in dtypes for n in (16, 128)),
        *(Case(d, (1, 2, 4096, 64)) for d in dtypes),
        *(Case(d, (2, 3, 256, 64), keep="all") for d in dtypes),
        *(Case(d, (2, 3, t, 64), causal=False) for d in dtypes for t in (256, 1001)),
        *(Case(d, (2, 3, 256, 64), causal=False, keep="drawn") for d in dtypes),
        *(Case(d, (2, 3, 321, 64), layout="split") for d in dtypes),
        *(Case(d, (2, 3, 256, 64), scale=s) for d in dtypes for s in (-0.2, 0.0)),
        Case("bfloat16", (2, 3, 256, 64), out_dtype="float32"),
        Case("float32", (2, 3, 300, 64), precision="tf32x3"),
        Case("float32", (2, 3, 100, 32), precision="ieee"),
        *(
            Case("bfloat16", (1, 2, 300, 64), keep=keep, backward=config.BackwardConfig(*row))
            for keep in ("stored", "drawn")
            for row in (
                (128, 32, 4, 2, True),
                (128, 64, 8, 2, True),
                (32, 64, 2, 2, True),
            )
        ),
    ]


def describe(config: Any) -> str:
    """Short name of a configuration."""
    if hasattr(config, "block_m"):
        text = f"M{config.block_m} N{config.block_n}"
    else:
        text = f"O{config.outer} I{config.inner}"
    text += f" w{config.num_warps} s{config.num_stages}" + (" split" if config.split else "")
    text += f" r{config.max_registers}" if config.max_registers else ""
    queries = getattr(config, "queries", None)
    return text if queries is None else f"{text} + {describe(queries)}"


def scalars(step: int = (3 << 32) + 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        torch.tensor(DROPOUT_P, dtype=torch.float64, device="cuda"),
        torch.tensor((7 << 32) + 1337, device="cuda"),
        torch.tensor(step, device="cuda"),
    )


def dropout(keep: str, shape: tuple[int, int, int, int], causal: bool) -> Any:
    """The `Dropout` of one way to get keep bits, or None."""
    if keep == "all":
        return None
    launch, bits = load("attention_launch"), load("keep_bits")
    stream = launch.Dropout(*scalars(), SITE)
    if keep == "drawn":
        return stream
    packed = torch.full(bits.bits_shape(*shape[:3]), -1, dtype=torch.int32, device="cuda")
    bits.launch_keep_bits(packed, *stream[:4], shape[2], causal)
    return stream._replace(bits=packed)


def inputs(
    dtype_name: str, shape: tuple[int, int, int, int], layout: str
) -> tuple[torch.Tensor, ...]:
    """q, k, v, dy as (B, H, T, D) views."""
    batch, heads, length, dim = shape
    dtype = getattr(torch, dtype_name)
    generator = torch.Generator("cuda").manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device="cuda").to(dtype)

    dy = normal(batch, length, heads, dim).transpose(1, 2)
    if layout == "qkv":
        return (*normal(batch, length, 3, heads, dim).permute(2, 0, 3, 1, 4).unbind(0), dy)
    q = normal(batch, heads, length, dim + 3)[..., :dim]
    k = normal(length, batch, heads, dim).permute(1, 2, 0, 3)
    v = normal(batch, heads, dim, length).transpose(2, 3)  # unit stride on the wrong axis
    return q, k, v, dy


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    if not bool(torch.isfinite(got).all()):
        return float("inf")
    return float((got.double() - want.double()).norm() / want.double().norm().clamp_min(1e-30))


def scale_of(case: Case) -> float:
    return case.shape[3] ** -0.5 if case.scale is None else case.scale


def run_kernels(case: Case) -> tuple[torch.Tensor, ...]:
    """y, lse, dq, dk, dv by the kernels, into outputs that hold NaN before."""
    launch = load("attention_launch")
    q, k, v, dy = inputs(case.dtype, case.shape, case.layout)
    batch, heads, length, dim = case.shape
    out = getattr(torch, case.out_dtype or case.dtype)

    def poisoned(*shape: int, dtype: torch.dtype = out) -> torch.Tensor:
        return torch.full(shape, float("nan"), dtype=dtype, device="cuda")

    y = poisoned(batch, length, heads, dim).transpose(1, 2)
    lse = poisoned(batch, heads, length, dtype=torch.float32)
    dq, dk, dv = poisoned(batch, length, 3, heads, dim).permute(2, 0, 3, 1, 4).unbind(0)
    kept = dropout(case.keep, case.shape, case.causal)
    common = (kept, scale_of(case), case.causal, case.precision)
    launch.launch_forward(q, k, v, y, lse, *common, case.forward)
    launch.launch_backward(dy, y, lse, q, k, v, dq, dk, dv, *common, case.backward)
    return y, lse, dq, dk, dv


def limit(case: Case) -> float:
    if case.dtype == "bfloat16":
        return 1e-2
    return {"tf32": 5e-3, "tf32x3": 1e-5, "ieee": 1e-5}[case.precision]


def check_case(case: Case) -> tuple[bool, str]:
    reference = load("attention_reference")
    q, k, v, dy = inputs(case.dtype, case.shape, case.layout)
    first, second = run_kernels(case), run_kernels(case)
    same = all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    exact = [x.double() for x in (q, k, v)]
    stream = (None, None, None, 0) if case.keep == "all" else (*scalars(), SITE)
    arguments = (*stream, scale_of(case), case.causal)
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
        f"{case.dtype:8} {'x'.join(map(str, case.shape)):13} {case.keep:6} "
        f"{'causal' if case.causal else 'full':6} {case.precision:6} {case.layout:5}"
    )
    if case.scale is not None:
        tag += f" scale {case.scale}"
    for config in (case.forward, case.backward):
        tag += "" if config is None else f" {describe(config)}"
    return good, f"{tag}: {names} repeatable {same}"


def check_bits() -> tuple[bool, str]:
    """Masks, packed bits and what the forward pass drops are all what the definition says."""
    attention, masks, bits = load("attention"), load("dropout"), load("keep_bits")
    define = masks.definition.dropout_mask
    batch, heads, length, dim, site = 3, 2, 200, 64, 11
    p, seed, step = scalars()
    want = define(p, seed, step, site, (batch, heads, length, length), p.device)
    wrong = int((masks.dropout_mask(p, seed, step, site, want.shape) != want).sum())
    for shape in ((5,), (1000,), (33, 130), (7, 9, 384), (12, 256, 384)):
        expected = define(p, seed, step, site, shape, p.device)
        wrong += int((masks.dropout_mask(p, seed, step, site, shape) != expected).sum())
    sizes = (batch, heads, length)
    packed = bits.attention_keep_bits(p, seed, step, site, *sizes, False)
    wrong += int((bits.unpack(packed, length) != want).sum())
    causal = bits.attention_keep_bits(p, seed, step, site, *sizes, True)
    wrong += int((bits.unpack(causal, length) != want).tril().sum())
    for dtype, source in ((d, s) for d in (torch.bfloat16, torch.float32) for s in (None, packed)):
        q, k = torch.randn(2, batch, heads, length, dim, device="cuda", dtype=dtype).unbind(0)
        for start in range(0, length, dim):
            v = torch.zeros(batch, heads, length, dim, device="cuda", dtype=dtype)
            width = min(dim, length - start)
            index = torch.arange(width, device="cuda")
            v[:, :, start + index, index] = 1.0
            y, _ = attention.attention(q, k, v, p, seed, step, site, causal=False, bits=source)
            wrong += int(((y[..., :width] != 0) != want[..., start : start + width]).sum())
    return wrong == 0, f"dropout bits: {wrong} differ from the reference"


def check_operators() -> tuple[bool, str]:
    """Operators under torch.compile and in a CUDA graph replayed with another step."""
    attention, keep_bits = load("attention"), load("keep_bits")
    qkv = torch.randn(2, 256, 3, 6, 64, device="cuda", dtype=torch.bfloat16)
    dy = torch.randn(2, 256, 6, 64, device="cuda", dtype=torch.bfloat16)
    p, seed, step = scalars()

    def both(qkv: torch.Tensor, dy: torch.Tensor, *stream: torch.Tensor) -> torch.Tensor:
        bits = keep_bits.attention_keep_bits(*stream, 3, 2, 6, 256)
        y, lse = attention.attention_qkv(qkv * 2, *stream, 3, bits=bits)
        return attention.attention_qkv_backward(dy + 1, y, lse, qkv * 2, *stream, 3, bits=bits)

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

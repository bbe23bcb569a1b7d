"""Run the Triton kernels in Triton's interpreter on CPU tensors and print what they return.

A process of its own, because TRITON_INTERPRET must be set before triton is imported. Reads a JSON
list of cases on stdin; writes a JSON list of results, one per case.
"""

import json
import sys
from dataclasses import replace
from typing import Any

import torch
from sql_compact.functions.dropout import dropout_mask
from sql_compact.kernels import attention_reference as reference
from sql_compact.kernels.attention_config import BackwardConfig, ForwardConfig
from sql_compact.kernels.attention_launch import Dropout, launch_backward, launch_forward
from sql_compact.kernels.dropout import launch_dropout_mask
from sql_compact.kernels.keep_bits import bits_shape, launch_keep_bits, unpack

SEED = (7 << 32) + 1337
STEP = (3 << 32) + 5


def scalars(p: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.tensor(p, dtype=torch.float64), torch.tensor(SEED), torch.tensor(STEP)


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    if not bool(torch.isfinite(got).all()):
        return float("inf")
    return float((got.double() - want.double()).norm() / want.double().norm().clamp_min(1e-30))


def attention_case(case: dict[str, Any]) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    batch, heads, length, dim = case["shape"]
    dtype = getattr(torch, case["dtype"])
    qkv = torch.randn(batch, length, 3, heads, dim, generator=generator).to(dtype)
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    dy = torch.randn(batch, length, heads, dim, generator=generator).to(dtype).transpose(1, 2)
    y = torch.full((batch, length, heads, dim), float("nan"), dtype=dtype).transpose(1, 2)
    lse = torch.full((batch, heads, length), float("nan"))
    dqkv = torch.full_like(qkv, float("nan"))
    dq, dk, dv = dqkv.permute(2, 0, 3, 1, 4).unbind(0)
    scale, causal = case["scale"], case["causal"]
    dropout = Dropout(*scalars(case["p"]), site=case["site"]) if case["p"] else None
    if dropout is not None and case["stored"]:
        bits = torch.full(bits_shape(batch, heads, length), -1, dtype=torch.int32)
        launch_keep_bits(bits, *dropout[:4], length, causal)
        dropout = dropout._replace(bits=bits)
    forward = ForwardConfig(*case["forward"])
    backward = BackwardConfig(*case["backward"])
    if case["apart"]:
        backward = replace(backward, queries=backward)
    launch_forward(q, k, v, y, lse, dropout, scale, causal, "ieee", forward)
    launch_backward(
        dy, y, lse, q, k, v, dq, dk, dv, dropout, scale, causal, "ieee", backward
    )  # fmt: skip
    exact = [x.double() for x in (q, k, v)]
    arguments = (*(dropout[:4] if dropout else (None, None, None, 0)), scale, causal)
    y_exact, lse_exact = reference.forward(*exact, *arguments)
    gradients = reference.backward(dy.double(), y_exact, lse_exact, *exact, *arguments)
    pairs = zip(("dq", "dk", "dv"), (dq, dk, dv), gradients, strict=True)
    return {
        "y": relative_error(y, y_exact),
        "lse": relative_error(lse, lse_exact),
        **{name: relative_error(got, want) for name, got, want in pairs},
    }


def mask_case(case: dict[str, Any]) -> dict[str, float]:
    p, seed, step = scalars(case["p"])
    out = torch.zeros(case["shape"], dtype=torch.bool)
    launch_dropout_mask(out, p, seed, step, case["site"])
    want = dropout_mask(p, seed, step, case["site"], case["shape"])
    return {"wrong": float((out != want).sum()), "kept": float(out.double().mean())}


def bits_case(case: dict[str, Any]) -> dict[str, float]:
    p, seed, step = scalars(case["p"])
    batch, heads, length = case["shape"]
    out = torch.full(bits_shape(batch, heads, length), -1, dtype=torch.int32)
    launch_keep_bits(out, p, seed, step, case["site"], length, case["causal"], tuple(case["tile"]))
    want = dropout_mask(p, seed, step, case["site"], (batch, heads, length, length))
    wrong = unpack(out, length) != want
    return {"wrong": float((wrong.tril() if case["causal"] else wrong).sum())}


def main() -> None:
    torch.set_num_threads(1)
    cases = json.load(sys.stdin)
    runners = {"attention": attention_case, "mask": mask_case, "bits": bits_case}
    json.dump([runners[case["kind"]](case) for case in cases], sys.stdout)


if __name__ == "__main__":
    main()

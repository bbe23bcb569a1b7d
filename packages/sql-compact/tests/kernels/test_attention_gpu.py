"""The fused kernels on a CUDA device, against float64 torch with the same dropout bits."""

import pytest
import torch
from sql_compact.functions import dropout as definition
from sql_compact.kernels import (
    attention,
    attention_backward,
    attention_qkv,
    attention_qkv_backward,
    dropout_mask,
)
from sql_compact.kernels import attention_reference as reference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SITE = 5


def stream(p: float = 0.2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        torch.tensor(p, dtype=torch.float64, device="cuda"),
        torch.tensor((1 << 32) + 1337, device="cuda"),
        torch.tensor(9, device="cuda"),
    )


def normal(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(0)
    return torch.randn(*shape, generator=generator, device="cuda").to(dtype)


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


@pytest.mark.parametrize("dropout", [True, False])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [256, 333])
@pytest.mark.parametrize(
    ("dtype", "precision", "limit"),
    [
        (torch.bfloat16, "tf32", 1e-2),
        (torch.float32, "tf32", 5e-3),
        (torch.float32, "tf32x3", 1e-5),
    ],
)
def test_kernels_agree_with_float64(
    dtype: torch.dtype, precision: str, limit: float, length: int, causal: bool, dropout: bool
) -> None:
    q, k, v, dy = normal(4, 2, 3, length, 64, dtype=dtype).unbind(0)
    scalars = stream() if dropout else (None, None, None)
    y, lse = attention(q, k, v, *scalars, SITE, 0.2, causal, precision)
    gradients = attention_backward(dy, y, lse, q, k, v, *scalars, SITE, 0.2, causal, precision)
    exact = [x.double() for x in (q, k, v)]
    y64, lse64 = reference.forward(*exact, *scalars, SITE, 0.2, causal)
    want = (
        y64,
        lse64,
        *reference.backward(dy.double(), y64, lse64, *exact, *scalars, SITE, 0.2, causal),
    )
    for a, b in zip((y, lse, *gradients), want, strict=True):
        assert relative_error(a, b) < limit


@pytest.mark.parametrize("shape", [(5,), (33, 130), (7, 9, 384), (2, 3, 50, 51)])
def test_mask_bits_are_the_reference(shape: tuple[int, ...]) -> None:
    mask = dropout_mask(*stream(), SITE, shape)
    assert torch.equal(mask, definition.dropout_mask(*stream(), SITE, shape, "cuda"))


def test_attention_drops_exactly_the_reference_bits() -> None:
    q, k = normal(2, 3, 2, 64, 64, dtype=torch.bfloat16).unbind(0)
    v = torch.eye(64, device="cuda", dtype=torch.bfloat16).expand(3, 2, 64, 64)
    y, _ = attention(q, k, v, *stream(), SITE, causal=False)
    assert torch.equal(y != 0, definition.dropout_mask(*stream(), SITE, (3, 2, 64, 64), "cuda"))


def test_a_graph_replays_with_a_new_step_and_repeats_bit_for_bit() -> None:
    qkv = normal(2, 128, 3, 2, 64, dtype=torch.bfloat16)
    dy = normal(2, 128, 2, 64, dtype=torch.bfloat16)
    p, seed, step = stream()

    def run() -> torch.Tensor:
        y, lse = attention_qkv(qkv, p, seed, step, SITE)
        return attention_qkv_backward(dy, y, lse, qkv, p, seed, step, SITE)

    first = run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    graph.replay()
    assert torch.equal(captured, first)
    step.add_(1)
    graph.replay()
    assert not torch.equal(captured, first)
    assert torch.equal(captured, run())

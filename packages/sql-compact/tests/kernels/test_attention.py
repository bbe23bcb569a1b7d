"""Attention operators on the CPU: against autograd, and their behaviour as torch operators."""

from collections.abc import Callable

import pytest
import torch
from sql_compact.errors import DTypeError, ShapeError
from sql_compact.kernels import (
    attention,
    attention_backward,
    attention_keep_bits,
    attention_qkv,
    attention_qkv_backward,
    dropout_mask,
)
from torch.library import opcheck

SITE = 3


def stream(p: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.tensor(p, dtype=torch.float64), torch.tensor(1337), torch.tensor(5)


def inputs(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(4, 2, 3, 21, 16, generator=generator, dtype=torch.float64).to(dtype).unbind(0)
    )


def by_autograd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dy: torch.Tensor,
    p: float,
    scale: float,
    causal: bool,
) -> tuple[torch.Tensor, ...]:
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    scores = leaves[0] @ leaves[1].transpose(-1, -2) * scale
    if causal:
        length = q.shape[2]
        scores = scores.masked_fill(torch.ones(length, length).triu(1) > 0, -torch.inf)
    keep = dropout_mask(*stream(p), SITE, scores.shape).double() / (1 - p)
    y = (scores.softmax(-1) * keep) @ leaves[2]
    return y.detach(), scores.logsumexp(-1).detach(), *torch.autograd.grad(y, leaves, dy)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("p", [0.0, 0.4])
def test_values_and_cotangents_are_those_of_autograd(p: float, causal: bool) -> None:
    q, k, v, dy = inputs()
    want = by_autograd(q, k, v, dy, p, 0.3, causal)
    options = (*(stream(p) if p else (None, None, None)), SITE, 0.3, causal)
    y, lse = attention(q, k, v, *options)
    got = (y, lse, *attention_backward(dy, y, lse, q, k, v, *options))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


@pytest.mark.parametrize("causal", [True, False])
def test_packed_bits_stand_for_the_stream_they_come_from(causal: bool) -> None:
    q, k, v, dy = inputs()
    options = (*stream(0.4), SITE, 0.3, causal)
    bits = attention_keep_bits(*stream(0.4), SITE, *q.shape[:3], causal)
    y, lse = attention(q, k, v, *options)
    gradients = attention_backward(dy, y, lse, q, k, v, *options)
    y_bits, lse_bits = attention(q, k, v, *options, bits=bits)
    gradients_bits = attention_backward(dy, y, lse, q, k, v, *options, bits=bits)
    for a, b in zip((y_bits, lse_bits, *gradients_bits), (y, lse, *gradients), strict=True):
        assert torch.equal(a, b)
    # Other bits give another result, so they are really read.
    assert not torch.equal(attention(q, k, v, *options, bits=bits ^ 1)[0], y)


def test_bit_of_a_key_lies_in_the_word_of_its_32_keys() -> None:
    bits = attention_keep_bits(*stream(0.4), SITE, 1, 2, 70, False)
    mask = dropout_mask(*stream(0.4), SITE, (1, 2, 70, 70))
    assert bits.shape == (1, 2, 4, 128)
    for h, i, j in ((0, 0, 0), (1, 3, 31), (0, 69, 32), (1, 5, 69)):
        assert bool(bits[0, h, j // 32, i] >> (j % 32) & 1) == bool(mask[0, h, i, j])


def test_one_buffer_gives_what_three_give() -> None:
    q, k, v, dy = inputs(torch.float32)
    qkv = torch.stack([q, k, v]).permute(1, 3, 0, 2, 4).contiguous()
    options = (*stream(0.2), SITE)
    y, lse = attention(q, k, v, *options)
    y_one, lse_one = attention_qkv(qkv, *options)
    assert y_one.is_contiguous()
    torch.testing.assert_close(y_one.transpose(1, 2), y)
    torch.testing.assert_close(lse_one, lse)
    three = attention_backward(dy, y, lse, q, k, v, *options)
    one = attention_qkv_backward(dy.transpose(1, 2), y_one, lse_one, qkv, *options)
    assert one.is_contiguous()
    for part, expected in enumerate(three):
        torch.testing.assert_close(one[:, :, part].transpose(1, 2), expected)


def test_output_is_laid_out_for_the_next_projection() -> None:
    q, k, v, _ = inputs(torch.float32)
    y, lse = attention(q, k, v)
    assert y.shape == q.shape
    assert y.transpose(1, 2).is_contiguous()
    assert lse.shape == q.shape[:3]


def test_bfloat16_inputs_may_have_float32_outputs() -> None:
    q, k, v, dy = inputs(torch.bfloat16)
    y, lse = attention(q, k, v, out_dtype=torch.float32)
    gradients = attention_backward(dy, y, lse, q, k, v, out_dtype=torch.float32)
    assert {x.dtype for x in (y, lse, *gradients)} == {torch.float32}
    want = by_autograd(*(x.double() for x in (q, k, v, dy)), 0.0, 0.25, True)
    for a, b in zip((y, lse, *gradients), want, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0, atol=1e-5)


def test_step_tensor_is_read_at_run_time() -> None:
    q, k, v, _ = inputs()
    p, seed, step = stream(0.2)
    before = attention(q, k, v, p, seed, step, SITE)[0]
    step.add_(1)
    assert not torch.equal(before, attention(q, k, v, p, seed, step, SITE)[0])


def test_operators_keep_torch_library_rules() -> None:
    q, k, v, dy = inputs(torch.float32)
    qkv = torch.stack([q, k, v]).permute(1, 3, 0, 2, 4).contiguous()
    options = (*stream(0.2), SITE)
    y, lse = attention(q, k, v, *options)
    y_one = y.transpose(1, 2)
    checks = ("test_schema", "test_faketensor")
    opcheck(attention, (q, k, v, *options), test_utils=checks)
    opcheck(attention_backward, (dy, y, lse, q, k, v, *options), test_utils=checks)
    opcheck(attention_qkv, (qkv, *options), test_utils=checks)
    opcheck(attention_qkv_backward, (y_one, y_one, lse, qkv, *options), test_utils=checks)
    opcheck(dropout_mask, (*stream(0.2), SITE, [4, 5]), test_utils=checks)
    opcheck(attention_keep_bits, (*stream(0.2), SITE, 2, 3, 21), test_utils=checks)


def test_torch_compile_traces_the_operators_whole() -> None:
    q, k, v, _ = inputs(torch.float32)

    def function(q: torch.Tensor, *scalars: torch.Tensor) -> torch.Tensor:
        return attention(q * 2, k, v, *scalars, SITE)[0] + 1

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, *stream(0.2)), function(q, *stream(0.2)))


Q, K, V, DY = inputs()
WRONG: list[tuple[str, type[Exception], Callable[[], object]]] = [
    ("shape", ShapeError, lambda: attention(Q, K[:, :, :3], V)),
    ("rank", ShapeError, lambda: attention(Q[0], K[0], V[0])),
    ("empty", ShapeError, lambda: attention(Q[:0], K[:0], V[:0])),
    ("mixed dtypes", DTypeError, lambda: attention(Q, K.float(), V)),
    ("precision", DTypeError, lambda: attention(Q, K, V, precision="tf16")),
    ("no seed", ShapeError, lambda: attention(Q, K, V, torch.tensor(0.1))),
    (
        "float seed",
        DTypeError,
        lambda: attention(Q, K, V, torch.tensor(0.1), torch.tensor(1.0), torch.tensor(1)),
    ),
    (
        "vector p",
        ShapeError,
        lambda: attention(Q, K, V, torch.ones(2), torch.tensor(1), torch.tensor(1)),
    ),
    (
        "bits of another length",
        ShapeError,
        lambda: attention(
            Q, K, V, *stream(0.1), bits=attention_keep_bits(*stream(0.1), 0, 2, 3, 200)
        ),
    ),
    ("no heads", ShapeError, lambda: attention_keep_bits(*stream(0.1), 0, 2, 0, 8)),
    ("lse", ShapeError, lambda: attention_backward(DY, DY, DY[..., :2], Q, K, V)),
    ("qkv", ShapeError, lambda: attention_qkv(Q)),
    ("five axes", ShapeError, lambda: dropout_mask(*stream(0.1), 0, [1, 2, 3, 4, 5])),
    (
        "integer p",
        DTypeError,
        lambda: dropout_mask(torch.tensor(0), torch.tensor(1), torch.tensor(1), 0, [4]),
    ),
]


@pytest.mark.parametrize(
    ("error", "call"), [w[1:] for w in WRONG], ids=[w[0].replace(" ", "_") for w in WRONG]
)
def test_inputs_that_do_not_fit_are_typed_errors(
    error: type[Exception], call: Callable[[], object]
) -> None:
    with pytest.raises(error):
        call()

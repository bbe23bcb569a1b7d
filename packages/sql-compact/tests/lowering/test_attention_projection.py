"""The cotangent of a fused projection on the CPU: one buffer, with the values of three."""

import pytest
import torch
from sql_compact.lowering import operations


@pytest.mark.parametrize("length", [1, 21, 130])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dropout", [True, False])
def test_one_buffer_holds_the_three_cotangents(length: int, causal: bool, dropout: bool) -> None:
    batch, heads, width = 2, 3, 4
    generator = torch.Generator().manual_seed(length)
    draw = {"generator": generator, "dtype": torch.float64}
    # The parts lie first in memory, as a product of another order may leave them.
    qkv = torch.randn(3, batch, length, heads, width, **draw).permute(1, 2, 0, 3, 4)
    dy = torch.randn(batch, length, heads, width, **draw)
    keep = None
    if dropout:
        cpu = torch.device("cpu")
        keep = operations.attention_keep(0.3, 7, 5, 1, (batch, heads, length), causal, cpu)
    q, k, v = (qkv[:, :, part].transpose(1, 2) for part in range(3))
    settings = (keep, 0.5, causal, "float32")
    y, lse = operations.attention(q, k, v, *settings)
    want = operations.attention_backward(dy.transpose(1, 2), y, lse, q, k, v, *settings)
    got = operations.attention_projection_backward(dy, y.transpose(1, 2), lse, qkv, *settings)
    assert got.shape == qkv.shape and got.is_contiguous()
    for part, cotangent in enumerate(want):
        assert torch.equal(got[:, :, part].transpose(1, 2), cotangent)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_a_cast_of_truth_values_gives_zeros_and_ones(dtype: torch.dtype) -> None:
    values = torch.tensor([[True, False, True], [False, False, True]])
    for value in (values, values.T, values[:, ::2], values[:0], values[0, 0]):
        found = operations.cast(value, dtype)
        assert found.dtype == dtype and found.shape == value.shape
        assert found.tolist() == value.to(dtype).tolist()

"""The cotangent of a fused projection on the CPU: one buffer, with the values of three."""

import pytest
import torch
from sql_compact.dtypes import DType
from sql_compact.lowering import operations
from sql_compact.lowering.torch_module import lower
from sql_compact.precision import Precision
from sql_compact.rewrites.attention import AttentionCall
from sql_compact.tensor.graph import Graph, Node, Op, Operand


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


def _projection_program(graph: Graph) -> Node:
    """Cotangent of a (batch, position, 3, head, width) projection, as a plan has it."""
    batch, length, heads, width = 2, 5, 3, 4
    inside, outside = (batch, heads, length, width), (batch, length, heads, width)
    swapped = (0, 2, 1, 3)
    dtype = DType.FLOAT64

    def exchanged(node: Node, shape: tuple[int, ...]) -> Node:
        return graph.intern(Op.MAP, [Operand(node, swapped)], shape, dtype, "broadcast")

    def whole(nodes: list[Node]) -> list[Operand]:
        return [Operand(node, tuple(range(node.rank))) for node in nodes]

    qkv = graph.input("t.qkv", (batch, length, 3, heads, width), dtype)
    dy = graph.input("t.dy", inside, dtype)
    parts = [
        exchanged(graph.intern(Op.SLICE, whole([qkv]), outside, dtype, (2, part)), inside)
        for part in range(3)
    ]

    def call(result: str, operands: list[Node], shape: tuple[int, ...]) -> Node:
        attributes = AttentionCall(result, 0.5, causal=True, dropout=False)
        return graph.intern(Op.ATTENTION, whole(operands), shape, dtype, attributes)

    y, lse = call("y", parts, inside), call("lse", parts, inside[:3])
    cotangents = [call(name, [dy, y, lse, *parts], inside) for name in ("dq", "dk", "dv")]
    stacked = [exchanged(c, outside) for c in cotangents]
    operands = [Operand(node, (0, 1, 3, 4)) for node in stacked]
    return graph.intern(Op.STACK, operands, qkv.shape, dtype, 2)


def test_the_operation_that_the_buffer_replaces_does_not_run() -> None:
    lowered = lower(
        [_projection_program(Graph(Precision.FLOAT64))], torch.device("cpu"), Precision.FLOAT64
    )
    nodes = [n for n in lowered.module.graph.nodes if n.op == "call_function"]
    targets = [n.target for n in nodes]
    assert operations.attention_projection_backward in targets
    assert operations.attention_backward not in targets
    assert all(n.users for n in nodes)
    generator = torch.Generator().manual_seed(1)
    given = {
        "t.qkv": torch.randn(2, 5, 3, 3, 4, generator=generator, dtype=torch.float64),
        "t.dy": torch.randn(2, 3, 5, 4, generator=generator, dtype=torch.float64),
    }
    qkv = given["t.qkv"].clone().requires_grad_()
    q, k, v = (qkv[:, :, part].transpose(1, 2) for part in range(3))
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.5)
    (want,) = torch.autograd.grad(y, qkv, given["t.dy"])
    (got,) = lowered.module(*(given[name] for name in lowered.inputs))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-13)

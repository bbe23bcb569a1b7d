"""A tensor program: rewritten, and lowered to torch when it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import torch

from .domain import Range
from .lowering.torch_module import LoweredProgram, lower
from .precision import Precision
from .rewrites import rewrite
from .rewrites.layout import align_layouts
from .streaming.selections import Selection, absorb
from .tensor.graph import Node
from .tensor.labelled import Axis, Tensor, TensorBuilder


@dataclass(frozen=True, slots=True)
class Output:
    """A requested result: a tensor and the order of its axes."""

    tensor: Tensor
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class Program:
    """A tensor program for one device.

    Attributes:
        nodes: the rewritten outputs, as graph nodes.
        checks: trailing outputs that say whether an assumption held.
        parts: what each input reads of which array, where selections are part of reading.
    """

    nodes: tuple[Node, ...]
    precision: Precision
    device: torch.device
    checks: tuple[Node, ...]
    parts: Mapping[str, Selection] = field(default_factory=dict)

    @cached_property
    def lowered(self) -> LoweredProgram:
        """The torch module; compile ``lowered.module`` to run it compiled.

        Made when it is first asked for, since it holds arrays of its own, such as positions
        along an axis: what a program needs is known before.
        """
        return lower((*self.nodes, *self.checks), self.device, self.precision)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the arrays it reads, as ``table.column``."""
        return self.lowered.inputs

    def run(self, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """The outputs for these inputs, each with the axes asked for.

        Raises:
            AssumptionFailed: a value assumed to be finite is not; the exact program
                (``exact=True``) must run instead.
        """
        with torch.no_grad(), matmul_precision(self.precision):
            results = list(self.lowered.module(*(inputs[name] for name in self.inputs)))
        count = len(self.checks)
        if count:
            held, results = results[-count:], results[:-count]
            if not all(bool(flag) for flag in held):
                raise AssumptionFailed
        return results


class AssumptionFailed(Exception):
    """A value that the optimized program assumed to be finite, or no NaN, is not."""


def build_program(
    builder: TensorBuilder,
    outputs: Sequence[Output],
    device: torch.device,
    *,
    exact: bool = False,
    check: bool = True,
    reassociate: bool = False,
    select: bool = False,
) -> Program:
    """Rewrite the program that computes ``outputs``.

    Args:
        exact: never assume that a value is finite.
        check: also compute whether the assumptions made hold, as trailing outputs.
        reassociate: combine the factors of float products in another order.
        select: inputs are the parts of arrays that are read, not whole arrays.
    """
    tensors = [o.tensor for o in outputs]
    rewritten = rewrite(builder, tensors, exact=exact, reassociate=reassociate)
    nodes = [
        builder.arrange(tensor, output.axes)
        for tensor, output in zip(rewritten.outputs, outputs, strict=True)
    ]
    nodes = align_layouts(builder.graph, nodes)
    checks: list[Node] = []
    if check:
        checks += [_everywhere(builder, node, "isfinite") for node in rewritten.finite]
        checks += [_everywhere(builder, node, "isordered") for node in rewritten.ordered]
    results = [*nodes, *checks]
    parts: Mapping[str, Selection] = {}
    if select:
        results, parts = absorb(builder.graph, results)
    kept, tests = tuple(results[: len(nodes)]), tuple(results[len(nodes) :])
    return Program(kept, builder.graph.precision, device, tests, parts)


def _everywhere(builder: TensorBuilder, node: Node, test: str) -> Node:
    """Whether the test holds at every element."""
    axes = tuple(Axis(str(i), Range(s)) for i, s in enumerate(node.shape))
    return builder.reduce("all", builder.map(test, Tensor(node, axes)), axes).node


@contextmanager
def matmul_precision(precision: Precision) -> Iterator[None]:
    """Allow TensorFloat-32 products inside, exactly if the policy says so."""
    backend = torch.backends.cuda.matmul
    before = backend.allow_tf32
    backend.allow_tf32 = precision is Precision.TF32
    try:
        yield
    finally:
        backend.allow_tf32 = before

"""What the tests share: programs are legal after every pass, and tensors can be evaluated."""

import numpy as np
import pytest
import torch
from sql_compact import program
from sql_compact.domain import Range
from sql_compact.dtypes import DType
from sql_compact.lowering.torch_module import lower
from sql_compact.precision import Precision
from sql_compact.rewrites import rewrite
from sql_compact.tensor.graph import Graph
from sql_compact.tensor.labelled import Axis, Tensor, TensorBuilder
from sql_compact.tensor.spec import check_program


@pytest.fixture(autouse=True, scope="session")
def legal_after_every_pass():
    """Every program that any test builds is checked as SQL gives it and after each pass."""

    def checked(builder, outputs, **options):
        precision = builder.graph.precision

        def check(_, tensors):
            check_program([t.node for t in tensors], precision)

        check(None, outputs)
        rewritten = rewrite(builder, outputs, after_pass=check, **options)
        check(None, rewritten.outputs)
        return rewritten

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "rewrite", checked)
        yield


class Workbench:
    """Builds tensors by hand, and evaluates them."""

    def __init__(self, precision=Precision.FLOAT64):
        self.builder = TensorBuilder(Graph(precision))
        self.i, self.j, self.k, self.layer = (
            Axis(name, Range(size)) for name, size in (("i", 3), ("j", 4), ("k", 5), ("layer", 3))
        )

    def input(self, name, *axes, dtype=DType.FLOAT64):
        node = self.builder.graph.input(name, tuple(a.size for a in axes), dtype)
        return Tensor(node, axes)

    def zero(self, dtype=DType.FLOAT64):
        return self.builder.constant(0, dtype)

    def map(self, function, *tensors):
        return self.builder.map(function, *tensors)

    def masked(self, mask, value):
        return self.map("where", mask, value, self.zero(value.dtype))

    def sum(self, value, *axes):
        return self.builder.reduce_all("sum", value, axes)

    def evaluate(self, tensor, axes, arrays):
        """The tensor over ``axes``, as numpy, from arrays by input name."""
        node = self.builder.arrange(tensor, axes)
        check_program([node], self.builder.graph.precision)
        lowered = lower([node], torch.device("cpu"), self.builder.graph.precision)
        (value,) = lowered.module(*(torch.as_tensor(arrays[name]) for name in lowered.inputs))
        return value.numpy()

    def same(self, before, after, arrays, **tolerances):
        """Assert that two tensors have equal values, NaN where the other has NaN."""
        axes = tuple(dict.fromkeys((*before.axes, *after.axes)))
        np.testing.assert_allclose(
            self.evaluate(after, axes, arrays), self.evaluate(before, axes, arrays), **tolerances
        )


@pytest.fixture
def bench():
    return Workbench()


@pytest.fixture
def bench_of():
    return Workbench

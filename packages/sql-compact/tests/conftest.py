"""What the tests share: programs are legal after every pass, and tensors can be evaluated."""

import math

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


def _close(a, b):
    if isinstance(a, float) and isinstance(b, float):
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) and math.isnan(b)
        return math.copysign(1, a) == math.copysign(1, b) and math.isclose(
            a, b, rel_tol=1e-12, abs_tol=1e-300
        )
    return a == b and type(a) is type(b)


def _rows(table):
    return list(zip(*(c.to_pylist() for c in table.columns), strict=True))


def _key(row):
    return [
        (v is None, f"{v:+.9e}" if isinstance(v, float) else f"{type(v).__name__}{v!r}")
        for v in row
    ]


def assert_same_rows(ours, theirs, ordered=False):
    assert ours.column_names == theirs.column_names
    a, b = _rows(ours), _rows(theirs)
    if not ordered:
        a, b = sorted(a, key=_key), sorted(b, key=_key)
    assert len(a) == len(b), f"{len(a)} rows, not {len(b)}: {a} != {b}"
    for row, other in zip(a, b, strict=True):
        assert all(_close(x, y) for x, y in zip(row, other, strict=True)), f"{row} != {other}"


@pytest.fixture(scope="session")
def agree():
    """``agree(ctx, sql)``: both engines give the same rows; returns them."""

    def check(ctx, sql, ordered=False, params=None):
        ours = ctx.sql(sql, engine="compact", params=params).to_arrow()
        theirs = ctx.sql(sql, engine="rows", params=params).to_arrow()
        assert_same_rows(ours, theirs, ordered)
        return ours

    return check

"""A choice with a known side becomes AND or OR, and with its complement a constant."""

from __future__ import annotations

import numpy as np
from sql_compact import Precision, StatementTrace, table_of_array
from sql_compact.domain import Range
from sql_compact.dtypes import DType
from sql_compact.tensor.graph import Graph
from sql_compact.tensor.labelled import Axis, Tensor, TensorBuilder

SIZE = 4


def setup() -> tuple[TensorBuilder, Tensor, Tensor]:
    graph = Graph(Precision.FLOAT64)
    axis = Axis("i", Range(SIZE))
    m, x = (Tensor(graph.input(n, (SIZE,), DType.BOOL), (axis,)) for n in ("m", "x"))
    return TensorBuilder(graph), m, x


def test_a_known_side_leaves_and_or():
    b, m, x = setup()
    true, false = b.constant(True, DType.BOOL), b.constant(False, DType.BOOL)
    assert b.map("where", m, true, x) == b.map("or", m, x)
    assert b.map("where", m, false, x) == b.map("and", b.map("not", m), x)
    assert b.map("where", m, x, true) == b.map("or", b.map("not", m), x)
    assert b.map("where", m, x, false) == b.map("and", m, x)


def test_a_mask_and_its_complement_are_constant():
    b, m, _ = setup()
    absent = b.map("not", m)
    for pair in ((m, absent), (absent, m)):
        assert b.map("or", *pair) == b.constant(True, DType.BOOL)
        assert b.map("and", *pair) == b.constant(False, DType.BOOL)


def test_the_gradient_of_a_table_that_tokens_choose_from_is_dense():
    tables = [
        table_of_array("tokens", np.zeros((2, 3), np.int64), ("b", "t"), "token", 5, None),
        table_of_array("w", np.zeros((5, 4)), ("v", "c"), "val", None, None),
    ]
    sql = """WITH loss AS (SELECT SUM(w.val * w.val) AS val FROM tokens t JOIN w ON t.token = w.v),
    g AS (SELECT w.v, w.c, grad(loss, w.val) AS val FROM w)
    SELECT * FROM g"""
    (output,) = StatementTrace(tables, sql, ["g"]).program([("g", "val")]).outputs
    assert output.shape == (5, 4)

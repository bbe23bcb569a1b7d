"""The entry point: registration, what is wrong with data, and what results hold."""

import numpy as np
import pytest
import torch
import xarray as xr
from sql_compact import (
    CompactContext,
    CompactError,
    DomainError,
    DTypeError,
    ShapeError,
    UnknownTable,
)

FLOATS = np.arange(6.0).reshape(2, 3)
TOKENS = np.array([[0, 4, 2], [1, 7, 3]])


@pytest.fixture
def context():
    return CompactContext()


BAD = {
    "number of dims": (
        {"data": FLOATS, "dims": ("b",)},
        ShapeError,
        r"table 'w'.*1 dims.*\(2, 3\)",
    ),
    "no dims": ({"data": FLOATS}, ShapeError, "table 'w'.*dims"),
    "repeated dims": ({"data": FLOATS, "dims": ("b", "b")}, ShapeError, "table 'w'.*repeat"),
    "column named like a dim": (
        {"data": FLOATS, "dims": ("b", "val")},
        ShapeError,
        "table 'w'.*repeat",
    ),
    "length of coordinates": (
        {"data": FLOATS, "dims": ("b", "c"), "coords": {"c": [1, 2]}},
        ShapeError,
        "table 'w', dim 'c': 2 coordinates for size 3",
    ),
    "missing coordinate": (
        {"data": FLOATS, "dims": ("b", "c"), "coords": {"c": [1.0, np.nan, 2.0]}},
        DomainError,
        "table 'w', dim 'c': a coordinate value is NaN",
    ),
    "domain of floats": (
        {"data": FLOATS, "dims": ("b", "c"), "domain": 5},
        DomainError,
        "table 'w', column 'val': a domain needs integer values",
    ),
    "complex values": (
        {"data": FLOATS * 1j, "dims": ("b", "c")},
        DTypeError,
        "table 'w', column 'val'.*complex128",
    ),
}


@pytest.mark.parametrize(("arguments", "kind", "message"), BAD.values(), ids=BAD.keys())
def test_bad_data_is_refused_with_its_place(context, arguments, kind, message):
    with pytest.raises(kind, match=message):
        context.register("w", **arguments)


def test_a_value_outside_its_domain_is_named_with_its_place(context):
    context.register("x", TOKENS, dims=("b", "t"), column="token", domain=5)
    message = r"table 'x', column 'token': value 7 at \(b=1, t=1\) is outside its domain 0\.\.4"
    with pytest.raises(DomainError, match=message):
        context.sql("SELECT token, COUNT(*) AS c FROM x GROUP BY token")


def test_a_negative_value_is_outside_every_domain(context):
    context.register("x", np.array([0, -1]), dims=("t",), domain=5)
    with pytest.raises(DomainError, match=r"value -1 at \(t=1\)"):
        context.sql("SELECT val, COUNT(*) AS c FROM x GROUP BY val")


def test_an_array_may_change_its_values_between_queries(context):
    values = np.array([1.0, 2.0])
    context.register("x", values, dims=("i",))
    sql = "SELECT SUM(val) AS s FROM x"
    first = context.sql(sql)
    values[0] = 10.0
    assert float(context.sql(sql).to_torch()["s"]) == 12.0
    assert float(first.to_torch()["s"]) == 3.0


def test_a_result_is_a_snapshot_of_what_it_selects(context):
    values = np.array([1.0, 2.0])
    context.register("x", values, dims=("i",))
    result = context.sql("SELECT i, val FROM x")
    values[:] = 0.0
    np.testing.assert_array_equal(result.to_xarray().values, [1.0, 2.0])


def test_registering_again_replaces(context):
    context.register("x", np.ones(2), dims=("i",))
    sql = "SELECT SUM(val) AS s FROM x"
    assert float(context.sql(sql).to_torch()["s"]) == 2.0
    context.register("x", np.ones((2, 3)), dims=("i", "j"))
    assert float(context.sql(sql).to_torch()["s"]) == 6.0
    context.deregister("x")
    with pytest.raises(UnknownTable, match="x"):
        context.sql(sql)
    with pytest.raises(UnknownTable, match="table 'x' is not registered"):
        context.deregister("x")


def test_time_is_read_anew_by_each_query(context):
    sql = "SELECT now() AS t"
    first = context.sql(sql).to_arrow()["t"][0].value
    assert context.sql(sql).to_arrow()["t"][0].value > first


def test_an_unknown_precision_lists_the_known_ones():
    with pytest.raises(DTypeError, match="unknown precision 'half'; choose one of float64"):
        CompactContext(precision="half")


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_precision_below_double_is_float32_in_arrays(precision):
    context = CompactContext(precision=precision)
    context.register("x", np.ones((2, 3)), dims=("b", "c"))
    result = context.sql("SELECT b, SUM(val) AS s FROM x GROUP BY b").to_torch()["s"]
    assert result.dtype == torch.float32
    assert result.tolist() == [3.0, 3.0]


def test_a_dense_result_keeps_its_dims_and_coordinates(context):
    array = xr.DataArray(FLOATS, dims=("b", "c"), coords={"c": [0.5, 1.5, 9.0]}, name="val")
    context.register("x", array)
    result = context.sql("SELECT b, c, val * 2 AS val FROM x")
    assert (result.columns, result.dims) == (("b", "c", "val"), ("b", "c"))
    doubled = result.to_xarray()
    np.testing.assert_array_equal(doubled.values, FLOATS * 2)
    np.testing.assert_array_equal(doubled.coords["c"], [0.5, 1.5, 9.0])


def test_rows_that_no_dim_identifies_are_not_an_array(context):
    context.register("x", FLOATS, dims=("b", "c"))
    result = context.sql("SELECT b, val FROM x")
    with pytest.raises(ShapeError, match="rows vary along c, which no column shows"):
        result.to_xarray()
    assert result.to_arrow().num_rows == 6


def test_absent_rows_are_not_a_tensor(context):
    context.register("x", FLOATS, dims=("b", "c"))
    result = context.sql("SELECT b, c, val FROM x WHERE val > 2")
    with pytest.raises(ShapeError, match="column 'val' has absent or NULL rows"):
        result.to_torch()
    assert int(np.isnan(result.to_xarray()).sum()) == 3


def test_a_union_is_not_an_array(context):
    context.register("x", FLOATS, dims=("b", "c"))
    result = context.sql("SELECT b, val FROM x UNION ALL SELECT c, val FROM x")
    with pytest.raises(ShapeError, match="union of 2 dense parts"):
        result.to_dataset()


def test_every_error_is_one_of_the_package(context):
    for kind in (DomainError, DTypeError, ShapeError, UnknownTable):
        assert issubclass(kind, CompactError)


def test_explain_lists_contractions_with_their_sizes(context):
    context.register("x", FLOATS, dims=("b", "c"))
    context.register("w", np.ones((3, 4)), dims=("c", "d"))
    text = context.explain(
        "SELECT x.b, w.d, SUM(x.val * w.val) AS s FROM x JOIN w ON x.c = w.c GROUP BY x.b, w.d"
    )
    assert "1 contract" in text
    # The order of the axes of what is computed is the program's own.
    assert "[2x4 float64]" in text or "[4x2 float64]" in text

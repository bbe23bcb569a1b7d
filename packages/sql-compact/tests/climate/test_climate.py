"""Climate queries equal xarray's own answer, in one tensor program and bounded memory."""

import importlib.util
import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from sql_compact import CompactContext

_SPEC = importlib.util.spec_from_file_location(
    "climate_queries", Path(__file__).with_name("queries.py")
)
queries = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(queries)

SIZE = {"times": 730, "lats": 12, "lons": 10}


@pytest.fixture(scope="module")
def data():
    return queries.datasets(**SIZE)


@pytest.fixture(scope="module")
def ctx(data):
    # Inputs are at most two of 730 x 12 x 10 doubles; nothing is larger than a few of these.
    ctx = CompactContext(memory_budget=8 << 20)
    for name, dataset in data.items():
        ctx.register(name, dataset, domain=queries.domains(dataset))
    return ctx


@pytest.mark.parametrize("case", queries.CASES.values(), ids=queries.CASES.keys())
def test_equals_xarray(ctx, data, case):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = ctx.sql(case.sql, engine="compact").to_xarray()
    expected = case.answer(data).transpose(*case.dims)
    ours = result.transpose(*case.dims)
    assert ours.shape == expected.shape
    ours = ours.sel({d: expected[d].values for d in case.dims})
    np.testing.assert_allclose(ours.values, expected.values, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "name", ["climatology by month", "regional mean by mask", "forecast error by lead"]
)
def test_rows_agree(ctx, agree, name):
    small = queries.datasets(times=60, lats=6, lons=4)
    few = CompactContext()
    for table, dataset in small.items():
        few.register(table, dataset, domain=queries.domains(dataset))
    sql = queries.CASES[name].sql
    ours = few.sql(sql, engine="compact").to_pandas()
    theirs = few.sql(sql, engine="rows").to_pandas()
    keys = [c for c in ours.columns if c != "r"]
    a, b = (f.sort_values(keys).reset_index(drop=True) for f in (ours, theirs))
    xr.testing.assert_allclose(a.to_xarray(), b.to_xarray(), rtol=1e-12)

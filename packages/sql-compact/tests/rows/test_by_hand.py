"""Queries written by hand where SQL's meaning is easy to get wrong; see ``by_hand.sql``.

Each line is one query. Both engines give the same rows and the same types.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
from sql_compact import CompactContext

QUERIES = [
    line
    for line in Path(__file__).with_name("by_hand.sql").read_text().split("\n")
    if line and not line.startswith("--")
]
BIG = np.iinfo(np.int64).max


def _mask(*rows):
    return np.array(rows, dtype=bool)


@pytest.fixture(scope="module")
def ctx():
    ctx = CompactContext()
    nan, inf = np.nan, np.inf
    n = [[1, -2, 0], [7, -7, 3], [BIG, -BIG - 1, 5]]
    v = [[1.5, -0.0, 0.0], [nan, -nan, inf], [-inf, 2.5, -1.5]]
    columns = {
        "n": np.array(n),
        "v": np.array(v),
        "k": np.array([[0, 1, 2], [2, 1, 0], [0, 0, 1]]),
        "u": np.array([[0, 1, 2**63 + 5], [3, 4, 2**64 - 1], [6, 7, 8]], dtype=np.uint64),
        "i8": np.array([[127, -128, 1], [0, 5, -5], [100, 50, 3]], dtype=np.int8),
        "u8": np.array([[255, 0, 1], [2, 3, 4], [200, 100, 50]], dtype=np.uint8),
        "i32": np.array([[2**31 - 1, -(2**31), 1], [0, 5, -5], [100, 50, 3]], dtype=np.int32),
        "f": np.array([[0.1, 0.2, 0.3], [1e38, -1e38, 3.4e38], [1, 2, 3]], dtype=np.float32),
        "b": np.array([[True, False, True], [False, True, False], [True, True, False]]),
        "tame": np.array([[1.0, 2.0, 3.0], [-1.0, 0.5, 2.0], [4.0, 0.0, -2.0]]),
    }
    nulls = {
        "n": _mask([0, 0, 1], [0, 0, 0], [0, 0, 0]),
        "v": _mask([0, 0, 0], [0, 0, 0], [0, 0, 1]),
        "k": _mask([0, 1, 0], [0, 0, 0], [1, 0, 0]),
        "b": _mask([0, 0, 1], [0, 0, 0], [1, 0, 0]),
    }
    table = xr.Dataset({name: (("i", "j"), values) for name, values in columns.items()})
    ctx.register("t", table, domain={"k": 3}, valid={name: ~m for name, m in nulls.items()})
    ctx.register(
        "s",
        xr.Dataset(
            {"q": (("k",), [1.0, 2.0, 3.0, 4.0]), "m": (("k",), [5, 0, -3, 2])},
            coords={"k": [0, 1, 2, 9]},
        ),
    )
    empty = {"val": (("i",), np.zeros(0)), "m": (("i",), np.zeros(0, dtype=np.int64))}
    ctx.register("e", xr.Dataset(empty))
    ctx.register(
        "nul",
        xr.Dataset({"x": (("p",), [1, 2, 3]), "y": (("p",), [1, 2, 2])}),
        domain={"y": 3},
        valid={"x": np.array([True, False, True]), "y": np.array([True, True, False])},
    )
    days = "2023-12-31T23:30 2024-01-01T00:30 2024-02-29T12:00 2024-03-01 1969-12-31T23:59:59 2024-12-31"  # noqa: E501
    time = np.array(days.split(), dtype="datetime64[ns]")
    dates = xr.Dataset(
        {"x": (("time",), np.arange(6.0)), "w": (("time",), time[::-1])}, coords={"time": time}
    )
    ctx.register("d", dates)
    names = {"pop": (("name",), [5, 7, 2, 9]), "alt": (("name",), ["x", "Y_", "100%", ""])}
    ctx.register("c", xr.Dataset(names, coords={"name": ["Oslo", "bern", "Lima", "Bo'nn"]}))
    ctx.register("MiXed", xr.Dataset({"VaL": (("Dim X",), [1.0, 2.0])}))
    zeros = {"z": [-0.0, 0.0, 1.5, -1.5, inf]}
    ctx.register("fl", xr.Dataset({"x": (("z",), np.arange(5.0))}, coords=zeros))
    ctx.register("bo", xr.Dataset({"x": (("z",), np.arange(2.0))}, coords={"z": [True, False]}))
    large = np.array([0, 2**63, 2**64 - 1], dtype=np.uint64)
    ctx.register("ui", xr.Dataset({"x": (("z",), np.arange(3.0))}, coords={"z": large}))
    ctx.register("one", xr.Dataset({"x": ((), 1.5), "y": ((), 3)}))
    for name in ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32"):
        info = np.iinfo(name)
        values = np.array([info.min, info.max, 1, 2, 100], dtype=name)
        ctx.register(f"{name.replace('int', '' if name[0] == 'u' else 'i')}t", values, dims=("i",))
    return ctx


def _plain(kind):
    return pa.string() if kind in (pa.string_view(), pa.large_string()) else kind


@pytest.mark.parametrize("sql", QUERIES)
def test_by_hand(ctx, agree, sql):
    ours = agree(ctx, sql)
    theirs = ctx.sql(sql, engine="rows").to_arrow().schema
    assert [_plain(f.type) for f in ours.schema] == [_plain(f.type) for f in theirs]

"""Queries run twice: by the fold over dense arrays, and by DataFusion over their rows."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
from datafusion import SessionContext
from sql_compact import CompactContext
from sql_compact.functions.macros import expand_macros
from sql_compact.functions.udf import register_functions

#: Roundings a float result may be apart, in units of the sum of magnitudes of all the data.
ROUNDINGS = 64


def rows_of(dataset):
    """A Dataset's rows: one for each combination of coordinates, in axis order."""
    sizes = tuple(dataset.sizes.values())
    columns = {}
    for axis, (dim, size) in enumerate(dataset.sizes.items()):
        values = dataset.coords[dim].values if dim in dataset.coords else np.arange(size)
        shape = [1] * len(sizes)
        shape[axis] = -1
        columns[str(dim)] = np.broadcast_to(values.reshape(shape), sizes)
    for name, variable in dataset.data_vars.items():
        columns[str(name)] = variable.broadcast_like(dataset).transpose(*dataset.sizes).values
    return pa.table({name: _arrow(values.reshape(-1)) for name, values in columns.items()})


def _arrow(values):
    if values.dtype.kind in "UOT":
        return pa.array(values.tolist(), type=pa.string())
    if values.dtype.kind == "M":
        return pa.array(values.astype("datetime64[ns]"))
    return pa.array(np.ascontiguousarray(values))


@dataclass(slots=True)
class Engines:
    """The same tables in both engines."""

    datasets: Mapping[str, xr.Dataset]
    domains: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    #: How many values a query multiplies with each other at most.
    magnitude_power: int = 1
    compact: CompactContext = field(init=False)
    rows: SessionContext = field(init=False)
    magnitude: float = field(init=False)

    def __post_init__(self):
        self.compact = CompactContext()
        self.rows = SessionContext()
        register_functions(self.rows)
        self.magnitude = 1.0
        for name, dataset in self.datasets.items():
            self.compact.register(name, dataset, domain=self.domains.get(name))
            quoted = '"' + name.replace('"', '""') + '"'
            table = rows_of(dataset)
            self.rows.register_record_batches(quoted, [table.to_batches() or [_empty(table)]])
            for variable in dataset.data_vars.values():
                if variable.dtype.kind == "f":
                    self.magnitude += float(np.abs(variable.values[np.isfinite(variable)]).sum())

    def agree(self, sql):
        """Assert that both give the same bag of rows; return the rows."""
        ours = self.compact.sql(sql, engine="compact").to_arrow()
        theirs = self.rows.sql(expand_macros(sql)).to_arrow_table()
        assert ours.column_names == theirs.column_names
        assert [_plain(f.type) for f in ours.schema] == [_plain(f.type) for f in theirs.schema]
        tolerance = ROUNDINGS * np.finfo(float).eps * self.magnitude**self.magnitude_power
        assert_same_bag(ours, theirs, tolerance)
        return ours


def _empty(table):
    return pa.RecordBatch.from_pylist([], schema=table.schema)


def _plain(kind):
    return pa.string() if kind == pa.string_view() or kind == pa.large_string() else kind


def assert_same_bag(ours, theirs, tolerance):
    """Equal as bags: exact but for floats, which may be ``tolerance`` apart."""
    ours, theirs = (sorted(_rows(t), key=_order) for t in (ours, theirs))
    assert len(ours) == len(theirs), f"{len(ours)} rows, not {len(theirs)}: {ours} != {theirs}"
    for row, other in zip(ours, theirs, strict=True):
        same = all(_close(a, b, tolerance) for a, b in zip(row, other, strict=True))
        assert same, f"{row} != {other}"


def _rows(table):
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True)) or (
        [()] * table.num_rows
    )


def _order(row):
    """Exact values first, so that roundings of the others do not change the order."""
    exact = [(v is not None, str(type(v)), v or 0) for v in row if not isinstance(v, float)]
    rounded = [_rounded(v) for v in row if isinstance(v, float)]
    return [repr(e) for e in exact], rounded


def _rounded(value):
    if not math.isfinite(value):
        return (1, repr(value))
    return (0, f"{round(value, 7) + 0.0:030.7f}")


def _close(a, b, tolerance):
    if isinstance(a, float) and isinstance(b, float):
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) and math.isnan(b)
        if math.isinf(a) or math.isinf(b):
            return a == b
        return abs(a - b) <= tolerance * max(1.0, abs(b))
    return a == b and type(a) is type(b)


@pytest.fixture(scope="session")
def engines_over():
    """``engines_over(datasets, domains)``: both engines with these tables."""
    return Engines


@pytest.fixture(scope="session")
def same_bag():
    return assert_same_bag


@pytest.fixture(scope="session")
def engines():
    """Both engines with one table of every kind."""
    rng = np.random.default_rng(20260101)

    def floats(*shape):
        return rng.normal(size=shape)

    def integers(low, high, *shape, dtype=np.int64):
        return rng.integers(low, high, size=shape, dtype=dtype)

    special = np.array(
        [[1.0, np.nan, -0.0, 0.0], [np.inf, 2.5, -np.inf, 1e16], [3.0, 1.0, -1e16, -np.nan]]
    )
    days = np.array(["2024-02-28", "2024-03-01", "2023-12-31"], dtype="datetime64[ns]")
    datasets = {
        "x": xr.Dataset(
            {
                "val": (("b", "t"), floats(3, 4)),
                "k": (("b", "t"), integers(0, 5, 3, 4)),
                "flag": (("b", "t"), floats(3, 4) > 0),
                "n": (("b", "t"), integers(-9, 9, 3, 4)),
                "rate": (("b",), floats(3)),
            }
        ),
        "y": xr.Dataset({"val": (("b", "t"), floats(3, 4))}),
        "w": xr.Dataset({"val": (("k", "c"), floats(5, 2))}),
        "v": xr.Dataset(
            {"val": (("c",), floats(2)), "small": (("c",), integers(0, 9, 2, dtype=np.int32))}
        ),
        "special": xr.Dataset({"val": (("b", "t"), special)}),
        "grid": xr.Dataset(
            {"temp": (("lat", "time"), floats(3, 3))},
            coords={"lat": [-1.5, 0.0, 2.25], "time": days},
        ),
        "stations": xr.Dataset(
            {"height": (("lat",), floats(4))}, coords={"lat": [2.25, 7.0, -1.5, 0.5]}
        ),
        "holidays": xr.Dataset(
            {"weight": (("time",), floats(2))},
            coords={"time": np.array(["2023-12-31", "2024-01-01"], dtype="datetime64[ns]")},
        ),
        "neg": xr.Dataset({"val": (("i",), integers(-9, 9, 5))}, coords={"i": np.arange(-2, 3)}),
        "gap": xr.Dataset({"val": (("i",), floats(4))}, coords={"i": [0, 2, 5, -2]}),
        "shifted": xr.Dataset({"val": (("k",), floats(4))}, coords={"k": np.arange(3, 7)}),
        "city": xr.Dataset(
            {"people": (("name",), integers(1, 99, 3, dtype=np.int32))},
            coords={"name": ["Oslo", "Bern", "Lima"]},
        ),
        "river": xr.Dataset({"len": (("name",), floats(2))}, coords={"name": ["Bern", "Kyiv"]}),
        "one": xr.Dataset({"val": (("z",), floats(1))}),
        "zero": xr.Dataset({"val": (("z",), floats(0))}),
        "hyper": xr.Dataset({"lr": ((), 0.25), "step": ((), 7)}),
        "Mixed": xr.Dataset({"Value": (("Dim", "b"), floats(2, 3))}),
        'odd "name"': xr.Dataset({"a column": (("a dim",), floats(2))}),
    }
    return Engines(datasets, {"x": {"k": 5}})

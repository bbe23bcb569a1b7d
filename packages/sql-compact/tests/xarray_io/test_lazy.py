"""Lazy arrays: nothing is read on registration, and then only what a query needs."""

import numpy as np
import pytest
import xarray as xr
from sql_compact import CompactContext

da = pytest.importorskip("dask.array")

SHAPE = (8, 4, 6)


class Recorder:
    """A dask array whose blocks say when they are computed."""

    def __init__(self, name, chunks):
        self.values = np.arange(float(np.prod(SHAPE))).reshape(SHAPE)
        self.read = []
        lazy = da.from_array(self.values, chunks=chunks)

        def seen(block, block_info=None):
            if block_info:
                self.read.append(tuple(map(tuple, block_info[0]["array-location"])))
            return block

        self.array = lazy.map_blocks(seen, dtype=float, meta=np.empty((0, 0, 0)))


@pytest.fixture
def lazy():
    temp, wind = Recorder("temp", (2, 4, 6)), Recorder("wind", (1, 1, 6))
    dims = ("time", "level", "lat")
    dataset = xr.Dataset(
        {"temp": (dims, temp.array), "wind": (dims, wind.array)},
        coords={
            "time": np.arange("2024-01-01", "2024-01-09", dtype="datetime64[D]").astype(
                "datetime64[ns]"
            ),
            "level": [1000, 850, 500, 250],
            "lat": np.linspace(-50, 50, 6),
        },
    )
    temp.read.clear()
    wind.read.clear()
    ctx = CompactContext()
    ctx.register("a", dataset)
    return ctx, dataset, temp, wind


def test_registration_and_explain_read_nothing(lazy):
    ctx, _, temp, wind = lazy
    ctx.explain("SELECT level, AVG(temp * wind) AS m FROM a GROUP BY level")
    assert temp.read == wind.read == []


def test_only_the_variables_of_the_query_are_read(lazy):
    ctx, _, temp, wind = lazy
    result = ctx.sql("SELECT level, AVG(temp) AS m FROM a GROUP BY level").to_xarray()
    np.testing.assert_allclose(result, temp.values.mean((0, 2)))
    assert temp.read
    assert wind.read == []


def test_a_fixed_coordinate_reads_its_slice(lazy):
    ctx, _, _, wind = lazy
    sql = "SELECT time, lat, wind FROM a WHERE level = 500 AND time = '2024-01-03'"
    rows = ctx.sql(sql).to_pandas()
    np.testing.assert_array_equal(rows["wind"], wind.values[2, 2])
    assert set(wind.read) == {((2, 3), (2, 3), (0, 6))}


def test_a_bounded_coordinate_reads_its_range(lazy):
    ctx, _, temp, _ = lazy
    sql = "SELECT lat, SUM(temp) AS s FROM a WHERE time >= '2024-01-05' AND time < '2024-01-07' GROUP BY lat"  # noqa: E501
    result = ctx.sql(sql).to_xarray()
    np.testing.assert_allclose(result, temp.values[4:6].sum((0, 1)))
    assert set(temp.read) == {((4, 6), (0, 4), (0, 6))}


def test_a_filtered_expression_of_a_coordinate_reads_its_positions(lazy):
    ctx, _, _, wind = lazy
    sql = "SELECT time, AVG(wind) AS m FROM a WHERE level IN (1000, 250) AND date_part('day', time) % 4 = 0 GROUP BY time"  # noqa: E501
    result = ctx.sql(sql).to_pandas().sort_values("time")
    expected = wind.values[[3, 7]][:, [0, 3]].mean((1, 2))
    np.testing.assert_allclose(result["m"], expected)
    assert {block[0] for block in wind.read} == {(3, 4), (7, 8)}


def test_every_reading_of_a_table_is_covered(lazy):
    ctx, _, _, wind = lazy
    sql = (
        "SELECT x.lat, SUM(x.wind * y.wind) AS s FROM a x JOIN a y ON x.lat = y.lat AND "
        "x.level = y.level WHERE x.time = '2024-01-02' AND y.time = '2024-01-07' GROUP BY x.lat"
    )
    result = ctx.sql(sql).to_xarray()
    np.testing.assert_allclose(result, (wind.values[1] * wind.values[6]).sum(0))


def test_rows_read_lazily_too(lazy):
    ctx, dataset, temp, wind = lazy
    ctx.register("a", dataset, nan_is_null=True)
    result = ctx.sql("SELECT AVG(temp) AS m FROM a", engine="rows").to_pandas()["m"][0]
    assert result == pytest.approx(temp.values.mean())
    assert wind.read == []


def test_a_whole_array_is_computed_once(lazy):
    ctx, _, temp, _ = lazy
    ctx.sql("SELECT AVG(temp) AS m FROM a")
    assert len(temp.read) == len(set(temp.read)) == 4

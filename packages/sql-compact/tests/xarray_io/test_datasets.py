"""xarray in, xarray out: dims, coordinates of any type, attributes, lazy arrays."""

import numpy as np
import pytest
import xarray as xr
from sql_compact import CompactContext, DomainError, DTypeError, UnknownTable

cftime = pytest.importorskip("cftime")

DAYS = np.arange("2024-01-01", "2024-01-06", dtype="datetime64[D]").astype("datetime64[ns]")


@pytest.fixture
def era5():
    """Two groups of dims, coordinates of several types, attributes and encodings."""
    rng = np.random.default_rng(1)
    return xr.Dataset(
        {
            "t2m": (
                ("time", "lat"),
                rng.normal(280, 9, (5, 3)),
                {"units": "K", "long_name": "2 m temperature"},
            ),
            "q": (("time", "level", "lat"), rng.random((5, 2, 3))),
            "count": ((), np.int32(7)),
        },
        coords={
            "time": ("time", DAYS, {"axis": "T"}),
            "lat": ("lat", [60.0, 0.0, -60.0], {"units": "degrees_north"}),
            "level": [850, 500],
            "zone": ("lat", ["cold", "warm", "cold"]),
            "area": ("lat", [0.5, 1.0, 0.5]),
            "valid": (
                ("time", "lat"),
                np.broadcast_to(DAYS[:, None], (5, 3)) + np.timedelta64(6, "h"),
            ),
            "height": 2.0,
        },
        attrs={"title": "made up"},
    )


@pytest.fixture
def ctx(era5):
    ctx = CompactContext()
    ctx.register("era5", era5)
    return ctx


def test_groups_of_dims_are_tables_of_their_own(ctx):
    assert set(ctx.tables) == {"era5", "era5.time_lat", "era5.time_level_lat", "era5.scalar"}


TABLES = {
    "all dims": "SELECT time, level, lat, t2m, q, count FROM era5",
    "one group": "SELECT time, lat, t2m FROM era5.time_lat",
    "every column": "SELECT * FROM era5.time_lat",
    "scalars": "SELECT count, height FROM era5.scalar",
    "joined groups": (
        "SELECT s.lat, SUM(s.t2m * l.q) AS m FROM era5.time_lat s JOIN era5.time_level_lat l "
        "ON s.time = l.time AND s.lat = l.lat GROUP BY s.lat"
    ),
    "text of a coordinate": "SELECT zone, AVG(t2m) AS t FROM era5.time_lat GROUP BY zone",
    "weights of a coordinate": "SELECT time, SUM(t2m * area) / SUM(area) AS t FROM era5.time_lat GROUP BY time",  # noqa: E501
    "dates of a coordinate": "SELECT CAST(valid AS DATE) AS d, COUNT(*) AS c FROM era5.time_lat GROUP BY 1",  # noqa: E501
    "text filtered": "SELECT time, lat FROM era5.time_lat WHERE zone = 'warm' OR zone LIKE 'c%d' AND lat < 0",  # noqa: E501
    "text joined": (
        "SELECT a.lat, b.lat AS other FROM era5.time_lat a JOIN era5.time_lat b "
        "ON a.zone = b.zone AND a.time = b.time WHERE a.time = '2024-01-02'"
    ),
    "repeated": "SELECT SUM(t2m) AS s, COUNT(t2m) AS c FROM era5",
}


@pytest.mark.parametrize("sql", TABLES.values(), ids=TABLES.keys())
def test_agrees(ctx, agree, sql):
    agree(ctx, sql)


def test_no_variable_has_all_dims():
    ctx = CompactContext()
    ctx.register("p", xr.Dataset({"a": ("x", [1.0, 2.0]), "b": ("y", [3.0])}))
    assert set(ctx.tables) == {"p.x", "p.y"}
    with pytest.raises(UnknownTable):
        ctx.sql("SELECT a FROM p")
    assert ctx.sql("SELECT SUM(p.x.a) AS s FROM p.x").to_pandas()["s"].tolist() == [3.0]


def test_forgetting_a_dataset_forgets_its_groups(ctx):
    ctx.deregister("era5")
    assert ctx.tables == ()


def test_a_column_comes_back_as_it_was(ctx, era5):
    back = ctx.sql("SELECT time, lat, t2m FROM era5.time_lat").to_xarray()
    assert back.dims == ("time", "lat")
    xr.testing.assert_identical(back, era5["t2m"].drop_vars(["zone", "area", "valid", "height"]))


def test_computed_values_have_no_attributes_of_their_inputs(ctx):
    result = ctx.sql("SELECT time, lat, t2m - 273.15 AS celsius FROM era5.time_lat").to_dataset()
    assert result["celsius"].attrs == {}
    assert result["lat"].attrs == {"units": "degrees_north"}


def test_encodings_are_kept(era5):
    era5["t2m"].encoding = {"scale_factor": 0.01, "dtype": "int16"}
    era5["time"].encoding = {"units": "days since 1900-01-01"}
    ctx = CompactContext()
    ctx.register("e", era5[["t2m"]])
    result = ctx.sql("SELECT time, lat, t2m FROM e").to_dataset()
    assert result["t2m"].encoding == {"scale_factor": 0.01, "dtype": "int16"}
    assert result["time"].encoding == {"units": "days since 1900-01-01"}
    mean = ctx.sql("SELECT lat, AVG(t2m) AS t2m FROM e GROUP BY lat").to_dataset()
    assert mean["t2m"].encoding == {}


def test_a_dim_cut_short_has_no_old_coordinate_metadata(ctx):
    table = ctx.sql(
        "SELECT lat, AVG(t2m) AS t FROM era5.time_lat WHERE lat = 0 GROUP BY lat"
    ).to_arrow()
    assert table.column("lat").to_pylist() == [0.0]


@pytest.mark.parametrize(
    "coordinate",
    [
        np.array(["a", "b", "c"]),
        np.array(["x", "yy", "zzz"], dtype=object),
        np.array([1.5, -2.0, 0.25]),
        np.array([3, 1, 2], dtype=np.int16),
        np.array([250, 3, 9], dtype=np.uint8),
        np.array([True, False]),
        DAYS[:3],
        DAYS[:3].astype("datetime64[s]"),
        np.array([6, 12, 24], dtype="timedelta64[h]").astype("timedelta64[ns]"),
        np.array(["2024-01-01", "2024-01-02"], dtype="datetime64[us]"),
    ],
    ids=lambda c: str(c.dtype),
)
def test_coordinates_of_any_type_round_trip(agree, coordinate):
    array = xr.DataArray(
        np.arange(float(len(coordinate))), coords={"k": coordinate}, dims="k", name="v"
    )
    ctx = CompactContext()
    ctx.register("a", array)
    back = ctx.sql("SELECT k, v FROM a").to_xarray()
    xr.testing.assert_equal(back, array)
    agree(ctx, "SELECT k, v FROM a")
    agree(ctx, "SELECT a.k, b.v FROM a JOIN a b ON a.k = b.k")
    agree(ctx, "SELECT k, SUM(v) AS s FROM a GROUP BY k ORDER BY k DESC", ordered=True)


def test_calendars(agree):
    for calendar in ("noleap", "standard", "360_day"):
        times = xr.date_range("2001-01-30", periods=4, freq="D", calendar=calendar, use_cftime=True)
        array = xr.DataArray(np.arange(4.0), coords={"time": times}, dims="time", name="v")
        ctx = CompactContext()
        ctx.register("a", array)
        xr.testing.assert_identical(ctx.sql("SELECT time, v FROM a").to_xarray(), array)
        agree(ctx, "SELECT time, v FROM a")
        if calendar != "360_day":
            months = ctx.sql("SELECT date_part('month', time) AS m, SUM(v) AS s FROM a GROUP BY 1")
            assert dict(months.to_pandas().values) == {1: 1.0, 2: 5.0}


def test_a_date_without_a_gregorian_counterpart_is_refused():
    times = [cftime.DatetimeAllLeap(2001, 2, 29)]
    array = xr.DataArray([1.0], coords={"time": times}, dims="time")
    with pytest.raises(DomainError, match=r"all_leap.*no Gregorian counterpart"):
        CompactContext().register("a", array)


def test_values_without_a_sql_type_are_refused():
    with pytest.raises(DTypeError, match="complex"):
        CompactContext().register("a", np.zeros(2, complex), dims=("i",))
    ctx = CompactContext()
    ctx.register("a", np.array([{1}, {2}], dtype=object), dims=("i",))
    with pytest.raises(DTypeError, match="one SQL column"):
        ctx.sql("SELECT * FROM a")


def test_text_values_change_with_their_array():
    words = np.array(["a", "b", "a"], dtype=object)
    ctx = CompactContext()
    ctx.register("t", words, dims=("i",), column="word")
    sql = "SELECT word, COUNT(*) AS c FROM t GROUP BY word ORDER BY word"
    assert ctx.sql(sql).to_pandas().values.tolist() == [["a", 2], ["b", 1]]
    words[1] = "zebra"
    assert ctx.sql(sql).to_pandas().values.tolist() == [["a", 2], ["zebra", 1]]


def test_multiindex_levels_are_columns(agree):
    array = xr.DataArray(
        np.arange(6.0).reshape(2, 3),
        coords={"a": [1, 2], "b": list("xyz")},
        dims=("a", "b"),
        name="v",
    )
    ctx = CompactContext()
    ctx.register("s", array.stack(z=("a", "b")))
    agree(ctx, "SELECT b, SUM(v) AS s FROM s WHERE a > 1 GROUP BY b")


def test_rows_of_missing_values_agree_with_xarray_sql(agree):
    rng = np.random.default_rng(3)
    data = np.where(rng.random((6, 4)) < 0.3, np.nan, rng.normal(size=(6, 4)))
    ctx = CompactContext()
    ctx.register(
        "a",
        xr.Dataset(
            {"v": (("t", "x"), data)}, coords={"t": np.arange(6), "x": [1.5, 2.5, 3.5, 4.5]}
        ),
        nan_is_null=True,
    )
    for sql in (
        "SELECT * FROM a",
        "SELECT x, AVG(v) AS m, COUNT(v) AS c, MIN(v) AS l FROM a GROUP BY x",
        "SELECT t, SUM(v) AS s FROM a WHERE x > 2 GROUP BY t HAVING COUNT(v) > 1",
    ):
        agree(ctx, sql)


def test_missing_values_come_back_as_nan(ctx, era5):
    era5["t2m"][1, 1] = np.nan
    ctx = CompactContext()
    ctx.register("e", era5[["t2m"]], nan_is_null=True)
    back = ctx.sql("SELECT time, lat, t2m FROM e").to_xarray()
    np.testing.assert_array_equal(back.values, era5["t2m"].values)
    mean = ctx.sql("SELECT lat, AVG(t2m) AS t2m FROM e GROUP BY lat").to_xarray()
    np.testing.assert_allclose(mean, era5["t2m"].mean("time"), rtol=1e-14)

"""A context with a table of every kind of coordinate."""

import numpy as np
import pytest
import xarray as xr
from sql_compact import CompactContext


@pytest.fixture(scope="session")
def weather():
    """A context with dates, text, floats and numbers."""
    rng = np.random.default_rng(6)
    time = np.arange("2022-12-20", "2024-03-10", 9, dtype="datetime64[D]").astype("datetime64[ns]")
    ctx = CompactContext()
    ctx.register(
        "air",
        xr.Dataset(
            {
                "temp": (("time", "lat", "lon"), rng.normal(size=(len(time), 3, 5))),
                "kind": (("lat", "lon"), rng.integers(0, 4, (3, 5))),
            },
            coords={"time": time, "lat": [-30.0, 0.0, 45.5], "lon": [0.0, 7.5, 15.0, 22.5, 30.0]},
        ),
        domain={"kind": 4},
    )
    ctx.register(
        "city",
        xr.Dataset(
            {"people": (("name",), [5, 7, 2, 9])},
            coords={"name": ["Oslo", "Bern", "Lima", "Bonn"]},
        ),
    )
    ctx.register(
        "season", xr.Dataset({"warm": (("m",), np.arange(12) / 3)}, coords={"m": np.arange(1, 13)})
    )
    special = np.array([1.0, np.nan, -0.0, 0.0, np.inf, -np.inf, 2.5, -np.nan])
    ctx.register("special", special, dims=("i",))
    return ctx

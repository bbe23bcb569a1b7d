"""A dozen queries of everyday climate work, with xarray's own answer to each.

Used by the tests, on small grids, and by ``benchmarks/climate.py``, on large ones.
"""

from dataclasses import dataclass

import numpy as np
import xarray as xr


def domains(dataset):
    """The bounded columns of a dataset."""
    return {"region": 6} if "region" in dataset else {}


def datasets(times=1460, lats=73, lons=144, seed=0, dtype=np.float64):
    """Generated data of realistic shape: six-hourly fields, a forecast, masks and weights."""
    rng = np.random.default_rng(seed)
    time = np.datetime64("2021-01-01", "ns") + np.arange(times) * np.timedelta64(
        2 * 365 * 24 * 60 // times, "m"
    )
    lat = np.linspace(90, -90, lats)
    lon = np.arange(lons) * 360.0 / lons
    shape = (times, lats, lons)
    season = np.cos(2 * np.pi * (np.arange(times) / times * 2))[:, None, None]
    t2m = 283 + 25 * np.cos(np.deg2rad(lat))[:, None] - 12 * season + rng.normal(0, 3, shape)
    grid = {"time": time, "lat": lat, "lon": lon}
    fields = xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), t2m.astype(dtype)),
            "u": (("time", "lat", "lon"), rng.normal(0, 8, shape).astype(dtype)),
            "v": (("time", "lat", "lon"), rng.normal(0, 8, shape).astype(dtype)),
        },
        coords=grid,
    )
    bands = xr.Dataset(
        {
            "nir": (("time", "lat", "lon"), rng.uniform(0.1, 0.6, shape).astype(dtype)),
            "red": (("time", "lat", "lon"), rng.uniform(0.02, 0.3, shape).astype(dtype)),
        },
        coords=grid,
    )
    static = xr.Dataset(
        {
            "weight": (("lat",), np.maximum(np.cos(np.deg2rad(lat)), 0.0)),
            "region": (("lat", "lon"), rng.integers(0, 6, (lats, lons))),
        },
        coords={"lat": lat, "lon": lon},
    )
    leads = 6
    starts = max(2, times // 40)
    forecast = xr.Dataset(
        {
            "t2m": (
                ("start", "lead", "lat", "lon"),
                rng.normal(283, 9, (starts, leads, lats, lons)).astype(dtype),
            )
        },
        coords={
            "start": np.arange(starts),
            "lead": np.arange(1, leads + 1),
            "lat": lat,
            "lon": lon,
        },
    )
    analysis = xr.Dataset(
        {
            "t2m": (
                ("step", "lat", "lon"),
                rng.normal(283, 9, (starts + leads, lats, lons)).astype(dtype),
            )
        },
        coords={"step": np.arange(starts + leads), "lat": lat, "lon": lon},
    )
    coarse = lats // 3
    weights = np.zeros((coarse, lats))
    for i in range(coarse):
        weights[i, 3 * i : 3 * i + 3] = (0.25, 0.5, 0.25)
    regrid = xr.Dataset(
        {"w": (("out", "lat"), weights)}, coords={"out": np.arange(coarse), "lat": lat}
    )
    return {
        "era": fields,
        "bands": bands,
        "static": static,
        "forecast": forecast,
        "analysis": analysis,
        "regrid": regrid,
    }


@dataclass(frozen=True)
class Case:
    """A query and xarray's answer, as a DataArray with the query's dims."""

    sql: str
    answer: object
    dims: tuple


def _month(data):
    return data.groupby("time.month").mean("time").rename(month="m")


def _regional(d):
    region = d["static"]["region"]
    cells = d["era"]["t2m"].stack(cell=("lat", "lon"))
    return cells.groupby(region.stack(cell=("lat", "lon"))).mean("cell")


def _area_average(d):
    return d["era"]["t2m"].weighted(d["static"]["weight"]).mean(("lat", "lon"))


def _last_year(d):
    t2m = d["era"]["t2m"]
    shifted = t2m.assign_coords(time=t2m["time"] + np.timedelta64(365, "D"))
    now, before = xr.align(t2m, shifted, join="inner")
    return (now - before).mean("time")


def _rmse(d):
    forecast, analysis = d["forecast"]["t2m"], d["analysis"]["t2m"]
    found = []
    for lead in forecast["lead"].values:
        truth = analysis.isel(step=forecast["start"] + lead)
        error = forecast.sel(lead=lead) - truth
        found.append(float(np.sqrt((error**2).mean())))
    return xr.DataArray(found, coords={"lead": forecast["lead"].values}, dims="lead")


CASES = {
    "climatology by month": Case(
        "SELECT date_part('month', time) AS m, lat, lon, AVG(t2m) AS r FROM era GROUP BY 1, 2, 3",
        lambda d: _month(d["era"]["t2m"]),
        ("m", "lat", "lon"),
    ),
    "anomaly": Case(
        "WITH c AS (SELECT date_part('month', time) AS m, lat, lon, AVG(t2m) AS a FROM era "
        "GROUP BY 1, 2, 3) SELECT e.time, e.lat, e.lon, e.t2m - c.a AS r FROM era e JOIN c "
        "ON date_part('month', e.time) = c.m AND e.lat = c.lat AND e.lon = c.lon",
        lambda d: (
            d["era"]["t2m"].groupby("time.month")
            - d["era"]["t2m"].groupby("time.month").mean("time")
        ),
        ("time", "lat", "lon"),
    ),
    "zonal mean": Case(
        "SELECT time, lat, AVG(t2m) AS r FROM era GROUP BY time, lat",
        lambda d: d["era"]["t2m"].mean("lon"),
        ("time", "lat"),
    ),
    "weighted area average": Case(
        "SELECT e.time, SUM(e.t2m * s.weight) / SUM(s.weight) AS r FROM era e "
        "JOIN static.lat s ON e.lat = s.lat GROUP BY e.time",
        _area_average,
        ("time",),
    ),
    "regional mean by mask": Case(
        "SELECT e.time, s.region, AVG(e.t2m) AS r FROM era e JOIN static.lat_lon s "
        "ON e.lat = s.lat AND e.lon = s.lon GROUP BY e.time, s.region",
        _regional,
        ("time", "region"),
    ),
    "wind speed": Case(
        "SELECT lat, lon, AVG(sqrt(u * u + v * v)) AS r FROM era GROUP BY lat, lon",
        lambda d: np.sqrt(d["era"]["u"] ** 2 + d["era"]["v"] ** 2).mean("time"),
        ("lat", "lon"),
    ),
    "forecast error by lead": Case(
        "SELECT f.lead, sqrt(AVG((f.t2m - a.t2m) * (f.t2m - a.t2m))) AS r FROM forecast f "
        "JOIN analysis a ON a.step = f.start + f.lead AND f.lat = a.lat AND f.lon = a.lon "
        "GROUP BY f.lead",
        _rmse,
        ("lead",),
    ),
    "regridding": Case(
        "SELECT e.time, r.out, e.lon, SUM(e.t2m * r.w) AS r FROM era e "
        "JOIN regrid r ON e.lat = r.lat GROUP BY e.time, r.out, e.lon",
        lambda d: d["era"]["t2m"].dot(d["regrid"]["w"], dim="lat"),
        ("time", "out", "lon"),
    ),
    "degree days": Case(
        "SELECT EXTRACT(year FROM time) AS year, lat, lon, "
        "SUM(CASE WHEN t2m > 291.15 THEN t2m - 291.15 ELSE 0 END) AS r FROM era GROUP BY 1, 2, 3",
        lambda d: (d["era"]["t2m"] - 291.15).clip(min=0).groupby("time.year").sum("time"),
        ("year", "lat", "lon"),
    ),
    "comparison with last year": Case(
        "SELECT a.lat, a.lon, AVG(a.t2m - b.t2m) AS r FROM era a JOIN era b "
        "ON a.time = b.time + INTERVAL '365 days' AND a.lat = b.lat AND a.lon = b.lon "
        "GROUP BY a.lat, a.lon",
        _last_year,
        ("lat", "lon"),
    ),
    "time above a threshold": Case(
        "SELECT lat, lon, 100.0 * COUNT(*) FILTER (WHERE t2m > 300) / COUNT(*) AS r "
        "FROM era GROUP BY lat, lon",
        lambda d: 100.0 * (d["era"]["t2m"] > 300).mean("time"),
        ("lat", "lon"),
    ),
    "vegetation index": Case(
        "SELECT date_trunc('month', time) AS t, lat, lon, MAX((nir - red) / (nir + red)) AS r "
        "FROM bands WHERE lat > 0 GROUP BY 1, 2, 3",
        lambda d: (
            ((d["bands"]["nir"] - d["bands"]["red"]) / (d["bands"]["nir"] + d["bands"]["red"]))
            .sel(lat=slice(90, 1e-9))
            .resample(time="MS")
            .max()
            .rename(time="t")
        ),
        ("t", "lat", "lon"),
    ),
}

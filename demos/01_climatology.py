"""Monthly climatology and anomalies of air temperature in SQL, straight on the arrays:
``uv run demos/01_climatology.py``.

A made-up dataset of four years of daily fields (seasons, weather, a warming trend and one heat
wave) is queried with SQL. No row is ever made: the group by month and the join back to the days
become two tensor operations. The answer is compared with xarray's own ``groupby``.
"""

import argparse
import sys
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from sql_compact import CompactContext

CLIMATOLOGY = """
SELECT k.month, w.lat, w.lon, AVG(w.air) AS air
FROM weather w
JOIN calendar k ON w.time = k.time
GROUP BY k.month, w.lat, w.lon
"""

ANOMALY = f"""
WITH climatology AS ({CLIMATOLOGY})
SELECT w.time, w.lat, w.lon, w.air - c.air AS anomaly
FROM weather w
JOIN calendar k ON w.time = k.time
JOIN climatology c ON k.month = c.month AND w.lat = c.lat AND w.lon = c.lon
"""

HEAT_WAVE = {"time": slice("2022-07-10", "2022-07-24"), "lat": 50.0, "lon": 10.0}
TOLERANCE = 1e-10  # degrees
LONGEST = 36525  # days; a century of float64 fields is 92 MB


def make_weather(days: int, seed: int = 0) -> xr.Dataset:
    """Daily air temperature (degrees Celsius) from 2020, dims ``(time, lat, lon)``, float64."""
    rng = np.random.default_rng(seed)
    times = np.datetime64("2020-01-01", "ns") + np.arange(days) * np.timedelta64(1, "D")
    lat, lon = np.arange(35.0, 72.5, 2.5), np.arange(-10.0, 42.5, 2.5)
    day = np.arange(days)[:, None, None]
    mean = 17.0 - 0.45 * (lat - 35.0)[None, :, None] - 0.08 * (lon + 10.0)
    season = (6.0 + 0.12 * (lat - 35.0)[None, :, None] + 0.1 * (lon + 10.0)) * np.cos(
        2 * np.pi * (day - 200) / 365.25
    )
    weather = np.empty((days, lat.size, lon.size))
    weather[0] = 3.0 * rng.standard_normal(weather.shape[1:])
    for number in range(1, days):  # red noise: a day resembles the day before
        noise = rng.standard_normal(weather.shape[1:])
        weather[number] = 0.8 * weather[number - 1] + 1.8 * noise
    air = mean + season + weather + 0.04 * day / 365.25
    data = xr.Dataset(
        {"air": (("time", "lat", "lon"), air)}, {"time": times, "lat": lat, "lon": lon}
    )
    distance = ((data.lat - HEAT_WAVE["lat"]) / 6) ** 2 + ((data.lon - HEAT_WAVE["lon"]) / 9) ** 2
    hot = data.time.isin(data.time.sel(time=HEAT_WAVE["time"]))
    data["air"] = data.air + 9.0 * np.exp(-distance) * hot
    return data


def plot(path: Path, weather: xr.Dataset, climatology: xr.DataArray, anomaly: xr.DataArray) -> None:
    """The seasonal cycle, a year of anomalies and the heat wave, as PNG."""
    figure, (cycle, series, field) = plt.subplots(1, 3, figsize=(15, 4.2), layout="constrained")
    for lat in (40.0, 50.0, 60.0):
        values = climatology.sel(lat=lat, lon=10.0)
        cycle.plot(climatology.month, values, marker="o", label=f"{lat:g}°N, 10°E")
    cycle.set(title="climatology", xlabel="month", ylabel="air temperature (°C)")
    cycle.legend()

    last_year = {"time": slice(weather.time[-365].values, None)}
    local = anomaly.sel(lat=HEAT_WAVE["lat"], lon=HEAT_WAVE["lon"]).sel(**last_year)
    series.fill_between(local.time.values, np.maximum(local, 0), color="#c8553d")
    series.fill_between(local.time.values, np.minimum(local, 0), color="#1f4e8c")
    series.set(title="anomaly at 50°N, 10°E", ylabel="°C")
    series.tick_params(axis="x", rotation=30)

    wave = anomaly.sel(time=HEAT_WAVE["time"])
    shown = wave if wave.sizes["time"] else anomaly.isel(time=slice(-15, None))
    mesh = field.pcolormesh(
        anomaly.lon, anomaly.lat, shown.mean("time"), cmap="RdBu_r", vmin=-9, vmax=9
    )
    field.set(
        title=f"mean anomaly {str(shown.time.values[0])[:10]} to {str(shown.time.values[-1])[:10]}",
        xlabel="longitude",
        ylabel="latitude",
    )
    figure.colorbar(mesh, ax=field, label="°C")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description="Climatology and anomalies in SQL.")
    parser.add_argument("--days", type=int, default=1461, help="days of the dataset (from 2020)")
    parser.add_argument("--output", type=Path, default=Path("runs/climatology"), help="folder")
    arguments = parser.parse_args()
    if not 366 <= arguments.days <= LONGEST:
        parser.error(
            f"--days must be at least 366, so that every month occurs, and at most {LONGEST}"
        )

    try:
        arguments.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--output cannot be made: {error}")

    weather = make_weather(arguments.days)
    shape = " x ".join(f"{size} {dim}" for dim, size in weather.air.sizes.items())
    print(f"weather: {shape}, {weather.air.size:,} values")
    context = CompactContext(precision="float64")
    context.register("weather", weather)
    context.register("calendar", weather.time.dt.month, domain=13)  # months are 1 to 12

    started = time.perf_counter()
    climatology = context.sql(CLIMATOLOGY).to_xarray().dropna("month", how="all")
    climatology = climatology.transpose("month", "lat", "lon")
    anomaly = context.sql(ANOMALY).to_xarray().transpose("time", "lat", "lon")
    print(f"SQL: {time.perf_counter() - started:.2f} s")

    started = time.perf_counter()
    months = weather.air.groupby("time.month")
    expected = months.mean("time"), months - months.mean("time")
    print(f"xarray: {time.perf_counter() - started:.2f} s")
    worst = max(
        float(np.abs(found.values - wanted.values).max())
        for found, wanted in zip((climatology, anomaly), expected, strict=True)
    )
    print(f"largest difference from xarray: {worst:.2g} °C")

    picture = arguments.output / "climatology.png"
    try:
        plot(picture, weather, climatology, anomaly)
    except OSError as error:
        print(f"error: cannot write {picture}: {error.strerror or error}", file=sys.stderr)
        return 1
    print(f"written: {picture}")
    if not worst <= TOLERANCE:
        print(f"error: the difference is above {TOLERANCE:g}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

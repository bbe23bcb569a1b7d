"""Views of a state: queries and Datasets, all of them snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from sql_compact import CompactContext, CompactResult, Precision

from .layouts import StateLayout

if TYPE_CHECKING:
    import xarray as xr


class StateQueries:
    """SQL over the state, on its device.

    Weight tables have their own names; slots are ``w_m``, ``w_ema`` ... Queries are
    planned once and run on the state of each call.
    """

    def __init__(self, layout: StateLayout, device: torch.device, precision: Precision) -> None:
        self._layout = layout
        self._context = CompactContext(device, precision)

    def sql(self, query: str, state: Mapping[str, torch.Tensor]) -> CompactResult:
        """The rows of a query over this state."""
        for name, tensor in state.items():
            table = self._layout.arrays[name]
            coords = {d: domain.values() for d, domain in table.dims.items()}
            self._context.register(table.name, tensor, dims=tuple(table.dims), coords=coords)
        return self._context.sql(query)


def dataset_of(layout: StateLayout, weights: Mapping[str, np.ndarray]) -> xr.Dataset:
    """The weights as a Dataset, one variable for each table.

    A dim that does not have the same coordinates in all tables is called ``table_dim``.
    """
    import xarray as xr

    shared: dict[str, np.ndarray | None] = {}
    for table in layout.tables:
        for dim, domain in layout.arrays[table.name].dims.items():
            values = np.asarray(domain.values())
            known = shared.setdefault(dim, values)
            if known is None or not np.array_equal(known, values):
                shared[dim] = None
    arrays = {}
    for table in layout.tables:
        dims = layout.arrays[table.name].dims
        names = [d if shared[d] is not None else f"{table.name}_{d}" for d in dims]
        coords = {n: domain.values() for n, domain in zip(names, dims.values(), strict=True)}
        arrays[table.name] = xr.DataArray(weights[table.name], dims=names, coords=coords)
    return xr.Dataset(arrays)

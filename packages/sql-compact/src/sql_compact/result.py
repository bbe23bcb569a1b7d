"""Query results: dense arrays with dims, converted only when asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch

from .domain import Domain, Range
from .errors import ShapeError
from .relation.model import Coded, Coordinate, Relation, Values
from .tensor.labelled import Axis, Tensor

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


@dataclass(frozen=True, slots=True)
class Part:
    """One dense part of a result and the computed tensor of each of its expressions."""

    relation: Relation
    tensors: Mapping[Tensor, torch.Tensor]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(a.size for a in self.relation.axes)

    def dense(self, tensor: Tensor | None) -> np.ndarray | None:
        """An expression over all row axes, as numpy (None stays None)."""
        if tensor is None:
            return None
        value = self.tensors[tensor].detach().cpu().numpy()
        own = [self.relation.axes.index(a) for a in tensor.axes]
        order = np.argsort(own)
        value = value.transpose(order)
        index = tuple(slice(None) if i in own else None for i in range(len(self.relation.axes)))
        return np.broadcast_to(value[index], self.shape)


class CompactResult:
    """The rows a query returned, a snapshot of the time it ran.

    A result stays dense: :meth:`to_xarray` and :meth:`to_torch` hand out the arrays,
    :meth:`to_arrow` and :meth:`to_pandas` write one row for each present coordinate tuple
    (in no particular order, as SQL without ORDER BY).
    """

    def __init__(self, names: Sequence[str], schema: pa.Schema, parts: Sequence[Part]) -> None:
        self._names = tuple(names)
        self._schema = schema
        self._parts = tuple(parts)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return self._names

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the columns that are dimensions of the result."""
        return tuple(self._dims(self._parts[0]).values()) if len(self._parts) == 1 else ()

    def _dims(self, part: Part) -> dict[Axis, str]:
        """The dims of a part: row axes that a column shows, and the column's name."""
        dims: dict[Axis, str] = {}
        for name, column in zip(self._names, part.relation.columns, strict=True):
            if isinstance(column, Coordinate):
                dims.setdefault(column.axis, name)
        return dims

    def _one_part(self, target: str) -> tuple[Part, dict[Axis, str]]:
        if len(self._parts) != 1:
            raise ShapeError(
                f"{target}: the result is a union of {len(self._parts)} dense parts; "
                "aggregate it, or use to_arrow() or to_pandas()"
            )
        part = self._parts[0]
        dims = self._dims(part)
        hidden = [a.name for a in part.relation.axes if a not in dims]
        if hidden:
            raise ShapeError(
                f"{target}: rows vary along {', '.join(hidden)}, which no column shows; "
                "select those columns, aggregate over them, or use to_arrow()"
            )
        return part, dims

    def to_dataset(self) -> xr.Dataset:
        """The result as a Dataset: dims and coordinates restored, absent rows and NULLs NaN.

        Raises:
            ShapeError: rows are not identified by the result's dims.
        """
        import xarray as xr

        part, dims = self._one_part("to_dataset()")
        names = [dims[a] for a in part.relation.axes]
        coords = {dims[a]: a.domain.values() for a in part.relation.axes}
        present = part.dense(part.relation.present)
        variables = {}
        for name, column in zip(self._names, part.relation.columns, strict=True):
            if name in coords:
                continue
            values, valid = self._values(part, column)
            shown = _both(present, valid)
            variables[name] = (names, _with_missing(values, shown))
        return xr.Dataset(variables, coords=coords)

    def to_xarray(self) -> xr.DataArray | xr.Dataset:
        """A DataArray where there is one value column, else a Dataset."""
        dataset = self.to_dataset()
        if len(dataset.data_vars) == 1:
            return next(iter(dataset.data_vars.values()))
        return dataset

    def to_torch(self) -> dict[str, torch.Tensor]:
        """Value columns as tensors over all dims of the result, on the query's device.

        Raises:
            ShapeError: some row is absent or NULL, or rows are not identified by dims.
        """
        part, dims = self._one_part("to_torch()")
        tensors = {}
        for name, column in zip(self._names, part.relation.columns, strict=True):
            if name in dims.values():
                continue
            present = part.dense(_first(part.relation.present, column.valid))
            if present is not None and not present.all():
                raise ShapeError(f"to_torch(): column {name!r} has absent or NULL rows")
            if isinstance(column, Values):
                value = part.tensors[column.value]
                own = [part.relation.axes.index(a) for a in column.value.axes]
                value = value.permute(tuple(np.argsort(own)))
                index = tuple(slice(None) if i in own else None for i in range(len(part.shape)))
                tensors[name] = value[index].expand(part.shape).clone()
            else:
                values, _ = self._values(part, column)
                tensors[name] = torch.from_numpy(np.ascontiguousarray(values))
        return tensors

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table with the schema that SQL gives the query."""
        return pa.concat_tables([self._arrow_part(part) for part in self._parts])

    def _arrow_part(self, part: Part) -> pa.Table:
        present = part.dense(part.relation.present)
        rows = slice(None) if present is None else present.reshape(-1)
        arrays = []
        for field, column in zip(self._schema, part.relation.columns, strict=True):
            values, valid = self._values(part, column)
            values = values.reshape(-1)[rows]
            mask = None if valid is None else ~valid.reshape(-1)[rows]
            arrays.append(_arrow_array(values, mask, field.type))
        fields = [f.with_nullable(True) for f in self._schema]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame."""
        return self.to_arrow().to_pandas()

    def _values(self, part: Part, column) -> tuple[np.ndarray, np.ndarray | None]:
        """A column's values over all row axes, and where they are not NULL."""
        valid = part.dense(column.valid)
        if isinstance(column, Values):
            values = part.dense(column.value)
            assert values is not None
            return values, valid
        if isinstance(column, Coordinate):
            at = part.relation.axes.index(column.axis)
            shape = [1] * len(part.shape)
            shape[at] = -1
            return np.broadcast_to(column.domain.values().reshape(shape), part.shape), valid
        assert isinstance(column, Coded)
        codes = part.dense(column.code)
        assert codes is not None
        return _decode(codes, column.domain), valid


def _decode(codes: np.ndarray, domain: Domain) -> np.ndarray:
    if isinstance(domain, Range):
        return (codes + domain.start).astype(domain.dtype.numpy)
    return domain.values()[codes]


def _first(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return a if a is not None else b


def _both(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
    if a is None or b is None:
        return b if a is None else a
    return a & b


def _with_missing(values: np.ndarray, shown: np.ndarray | None) -> np.ndarray:
    """Values with NaN (or NaT, or None) where nothing is shown."""
    if shown is None or shown.all():
        return np.array(values)
    if values.dtype.kind == "f":
        return np.where(shown, values, np.array(np.nan, dtype=values.dtype))
    if values.dtype.kind == "M":
        return np.where(shown, values, np.datetime64("NaT"))
    if values.dtype.kind in "iu":
        return np.where(shown, values.astype(np.float64), np.nan)
    return np.where(shown, values.astype(object), None)


def _arrow_array(values: np.ndarray, mask: np.ndarray | None, kind: pa.DataType) -> pa.Array:
    values = np.ascontiguousarray(values)
    if pa.types.is_null(kind):
        return pa.nulls(len(values))
    if values.dtype.kind in "UOT":
        return pa.array(values.tolist(), type=kind, mask=mask)
    return pa.array(values, mask=mask).cast(kind)

"""Query results: dense arrays with dims, or rows, converted only when asked."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

from .arrow import arrow_array, arrow_type, numpy_of_arrow, with_missing
from .budget import check_rows
from .domain import Domain, Range
from .errors import ShapeError
from .ordering import Step, ordered_positions
from .relation.model import Column, Coordinate, Relation, Values
from .tensor.graph import Op
from .tensor.labelled import Axis, Tensor

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

#: An xarray variable's attributes and encoding.
Metadata = tuple[Mapping[Any, Any], Mapping[Any, Any]]


@dataclass(frozen=True, slots=True)
class Part:
    """One dense part of a result and the computed tensor of each of its expressions."""

    relation: Relation
    tensors: Mapping[Tensor, torch.Tensor]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(a.size for a in self.relation.axes)

    @property
    def rows(self) -> int:
        """How many rows it has."""
        present = self.dense(self.relation.present)
        return math.prod(self.shape) if present is None else int(np.count_nonzero(present))

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

    def values(self, column: Column) -> tuple[np.ndarray, np.ndarray | None]:
        """A column's values over all row axes, and where they are not NULL."""
        valid = self.dense(column.valid)
        if isinstance(column, Values):
            values = self.dense(column.value)
            assert values is not None
            return values, valid
        if isinstance(column, Coordinate):
            at = self.relation.axes.index(column.axis)
            shape = [1] * len(self.shape)
            shape[at] = -1
            return np.broadcast_to(column.domain.values().reshape(shape), self.shape), valid
        codes = self.dense(column.code)
        assert codes is not None
        return _decode(codes, column.domain), valid


@dataclass(frozen=True, slots=True)
class Origin:
    """What xarray knew of the registered tables, to be restored where it still holds.

    Attributes:
        coordinates: by dim and domain, the coordinate values as registered (which may be of
            a type that SQL does not have) with their metadata.
        columns: metadata of each input array, by its name.
    """

    coordinates: Mapping[tuple[str, Domain], tuple[np.ndarray | None, Metadata]]
    columns: Mapping[str, Metadata]

    def coordinate(self, axis: Axis) -> tuple[np.ndarray, Metadata]:
        values, metadata = self.coordinates.get((axis.name, axis.domain), (None, ({}, {})))
        return axis.domain.values() if values is None else values, metadata


class CompactResult(ABC):
    """The rows a query returned, a snapshot of the time it ran.

    The rows have no particular order unless the query has an ORDER BY.
    """

    def __init__(self, names: Sequence[str], schema: pa.Schema) -> None:
        self._names = tuple(names)
        self._schema = pa.schema([f.with_nullable(True) for f in schema])

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return self._names

    @property
    @abstractmethod
    def engine(self) -> str:
        """What computed it: ``"compact"`` or ``"rows"``."""

    @property
    @abstractmethod
    def dims(self) -> tuple[str, ...]:
        """Names of the columns that are dimensions of the result."""

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table with the schema that SQL gives the query.

        Raises:
            BudgetError: as all conversions, if this machine's memory cannot hold the rows.
        """

    @abstractmethod
    def to_dataset(self) -> xr.Dataset:
        """The result as a Dataset: dims and coordinates restored, absent rows and NULLs NaN.

        Raises:
            ShapeError: rows are not identified by the result's dims.
        """

    @abstractmethod
    def to_torch(self) -> dict[str, torch.Tensor]:
        """Value columns as tensors over all dims of the result, on the query's device.

        Raises:
            ShapeError: some row is absent or NULL, or rows are not identified by dims.
        """

    def to_xarray(self) -> xr.DataArray | xr.Dataset:
        """A DataArray where there is one value column, else a Dataset.

        Raises:
            ShapeError: rows are not identified by the result's dims.
        """
        dataset = self.to_dataset()
        if len(dataset.data_vars) == 1:
            return next(iter(dataset.data_vars.values()))
        return dataset

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame."""
        return self.to_arrow().to_pandas()


class DenseResult(CompactResult):
    """A result that stays dense arrays until it is converted."""

    def __init__(
        self,
        names: Sequence[str],
        schema: pa.Schema,
        parts: Sequence[Part],
        steps: Sequence[Step],
        origin: Origin,
    ) -> None:
        super().__init__(names, schema)
        self._parts = tuple(parts)
        self._steps = tuple(steps)
        self._origin = origin

    @property
    def engine(self) -> str:
        return "compact"

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(self._dims(self._parts[0]).values()) if len(self._parts) == 1 else ()

    def _dims(self, part: Part) -> dict[Axis, str]:
        """The dims of a part: row axes that a column shows, and the column's name."""
        dims: dict[Axis, str] = {}
        for name, column in zip(self._names, part.relation.columns, strict=False):
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
        check_rows(math.prod(part.shape), len(self._names), target)
        dims = self._dims(part)
        hidden = [a.name for a in part.relation.axes if a not in dims]
        if hidden:
            raise ShapeError(
                f"{target}: rows vary along {', '.join(hidden)}, which no column shows; "
                "select those columns, aggregate over them, or use to_arrow()"
            )
        return part, dims

    def _limited(self) -> RowResult | None:
        """The rows alone, where LIMIT or OFFSET leaves some out."""
        if any(step.restricts for step in self._steps):
            return RowResult(self.to_arrow(), self.dims)
        return None

    def to_dataset(self) -> xr.Dataset:
        import xarray as xr

        part, dims = self._one_part("to_dataset()")
        limited = self._limited()
        if limited is not None:
            return limited.to_dataset()
        names = [dims[a] for a in part.relation.axes]
        coords = {}
        for axis, name in dims.items():
            values, (attrs, encoding) = self._origin.coordinate(axis)
            coords[name] = xr.Variable(name, values, dict(attrs), dict(encoding))
        present = part.dense(part.relation.present)
        variables = {}
        for name, column in zip(self._names, part.relation.columns, strict=False):
            if name in coords:
                continue
            values, valid = part.values(column)
            shown = _both(present, valid)
            attrs, encoding = self._metadata(column)
            variables[name] = xr.Variable(
                names, with_missing(values, shown), dict(attrs), dict(encoding)
            )
        return xr.Dataset(variables, coords=coords)

    def _metadata(self, column: Column) -> Metadata:
        """What the registered variable carried, where the column is that variable itself."""
        tensor = column.value if isinstance(column, Values) else None
        if tensor is None or tensor.node.op is not Op.INPUT:
            return {}, {}
        return self._origin.columns.get(str(tensor.node.attributes), ({}, {}))

    def to_torch(self) -> dict[str, torch.Tensor]:
        part, dims = self._one_part("to_torch()")
        limited = self._limited()
        if limited is not None:
            return limited.to_torch()
        tensors = {}
        for name, column in zip(self._names, part.relation.columns, strict=False):
            if name in dims.values():
                continue
            present = _both(part.dense(part.relation.present), part.dense(column.valid))
            if present is not None and not present.all():
                raise ShapeError(f"to_torch(): column {name!r} has absent or NULL rows")
            if isinstance(column, Values):
                value = part.tensors[column.value]
                own = [part.relation.axes.index(a) for a in column.value.axes]
                value = value.permute(tuple(np.argsort(own)))
                index = tuple(slice(None) if i in own else None for i in range(len(part.shape)))
                tensors[name] = value[index].expand(part.shape).clone()
            else:
                tensors[name] = _torch(part.values(column)[0], name)
        return tensors

    def to_arrow(self) -> pa.Table:
        rows = sum(part.rows for part in self._parts)
        check_rows(rows, len(self._names), "to_arrow()")
        tables = [self._arrow_part(part, self._names, self._schema) for part in self._parts]
        table = pa.concat_tables(tables)
        if not self._steps:
            return table
        keys = pa.concat_tables(map(self._keys, self._parts), promote_options="permissive")
        return table.take(ordered_positions(keys.columns, table.num_rows, self._steps))

    def _keys(self, part: Part) -> pa.Table:
        """The hidden columns to order by."""
        columns = part.relation.columns[len(self._names) :]
        fields = [pa.field(f"k{i}", _arrow_type(column)) for i, column in enumerate(columns)]
        return self._arrow_part(part, [f.name for f in fields], pa.schema(fields), len(self._names))

    def _arrow_part(
        self, part: Part, names: Sequence[str], schema: pa.Schema, first: int = 0
    ) -> pa.Table:
        present = part.dense(part.relation.present)

        def rows(values: np.ndarray) -> np.ndarray:
            return values.reshape(-1) if present is None else values[present]

        arrays = []
        columns = part.relation.columns[first : first + len(names)]
        for field, column in zip(schema, columns, strict=True):
            values, valid = part.values(column)
            mask = None if valid is None else ~rows(valid)
            arrays.append(arrow_array(rows(values), mask, field.type))
        return pa.Table.from_arrays(arrays, schema=schema)


class RowResult(CompactResult):
    """A result that is rows.

    Args:
        dims: names of the columns that may identify a row; where the rows have them all and
            no two are the same, they become dims again.
    """

    def __init__(self, rows: pa.Table, dims: Sequence[str]) -> None:
        super().__init__(rows.column_names, rows.schema)
        self._rows = rows
        self._dim_names = tuple(d for d in dims if d in rows.column_names)

    @property
    def engine(self) -> str:
        return "rows"

    @property
    def dims(self) -> tuple[str, ...]:
        return self._dim_names

    def to_arrow(self) -> pa.Table:
        return self._rows

    def to_dataset(self) -> xr.Dataset:
        import xarray as xr

        keys, codes = self._coordinates("to_dataset()")
        shape = tuple(len(values) for values in keys.values())
        variables = {}
        for name in self._names:
            if name in keys:
                continue
            values, valid = numpy_of_arrow(self._rows.column(name))
            full = np.zeros(shape, dtype=values.dtype)
            shown = np.zeros(shape, dtype=bool)
            places = codes or (None,)  # one row without dims
            full[places] = values
            shown[places] = True if valid is None else valid
            variables[name] = (tuple(keys), with_missing(full, shown))
        return xr.Dataset(variables, coords=keys)

    def to_torch(self) -> dict[str, torch.Tensor]:
        dataset = self.to_dataset()
        tensors = {}
        for name, variable in dataset.data_vars.items():
            column = self._rows.column(str(name))
            if column.null_count or variable.size != len(column):
                raise ShapeError(f"to_torch(): column {name!r} has absent or NULL rows")
            tensors[str(name)] = _torch(variable.values, str(name))
        return tensors

    def _coordinates(self, target: str) -> tuple[dict[str, np.ndarray], tuple[np.ndarray, ...]]:
        """Each dim's values in order of appearance sorted, and every row's position in them."""
        import pandas as pd

        keys: dict[str, np.ndarray] = {}
        codes = []
        for name in self._dim_names:
            values, valid = numpy_of_arrow(self._rows.column(name))
            if valid is not None:
                raise ShapeError(f"{target}: key column {name!r} is NULL in some row")
            code, distinct = pd.factorize(values, sort=True)
            keys[name] = np.asarray(distinct)
            codes.append(code)
        shape = tuple(len(values) for values in keys.values())
        if codes:
            flat = np.ravel_multi_index(tuple(codes), shape) if len(codes[0]) else codes[0]
            unique = len(np.unique(flat)) == len(flat)
        else:
            unique = self._rows.num_rows == 1
        if not unique:
            named = ", ".join(self._dim_names) or "no key columns"
            raise ShapeError(
                f"{target}: rows are not identified by {named}; "
                "select the table's dims, or use to_arrow() or to_pandas()"
            )
        return keys, tuple(codes)


def _torch(values: np.ndarray, name: str) -> torch.Tensor:
    try:
        return torch.from_numpy(np.ascontiguousarray(values))
    except TypeError:
        raise ShapeError(
            f"to_torch(): column {name!r} holds {values.dtype} values, which are not numbers; "
            "leave it out, or use to_arrow()"
        ) from None


def _decode(codes: np.ndarray, domain: Domain) -> np.ndarray:
    if isinstance(domain, Range):
        return (codes + domain.start).astype(domain.dtype.numpy)
    return domain.values()[codes.reshape(-1)].reshape(codes.shape)


def _both(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
    if a is None or b is None:
        return b if a is None else a
    return a & b


def _arrow_type(column: Column) -> pa.DataType:
    if isinstance(column, Values):
        return column.value.dtype.arrow
    return arrow_type(column.domain)

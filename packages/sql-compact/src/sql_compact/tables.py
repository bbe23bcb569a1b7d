"""Compact tables: dense arrays with named dims, seen as tables.

Dims become key columns (one row for each combination of coordinates), variables become
value columns. Nothing is copied or loaded on registration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from .arrow import arrow_type
from .domain import Domain, Explicit, Range, domain_of
from .dtypes import DType, dtype_of_numpy
from .errors import DomainError, DTypeError, ShapeError, UnknownColumn
from .relation.model import Bag, Coded, Column, Coordinate, Relation, Table, Values
from .tensor.labelled import Axis, Tensor, TensorBuilder
from .tensor.maps import TORCH_DTYPES


class Nulls(Enum):
    """Where a value column may be NULL.

    ``NAN``: where it is NaN; ``MASK``: where a mask that comes with the array says so.
    """

    NONE = "none"
    NAN = "nan"
    MASK = "mask"


@dataclass(frozen=True, slots=True)
class ValueColumn:
    """A value column: an array over some of the table's dims.

    Attributes:
        domain: number of values 0..domain-1 an integer column may take; None: unbounded.
        nulls: where the column is NULL.
        values: the distinct values of a column of text or dates, whose array then holds
            positions in them.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: DType
    domain: int | None = None
    nulls: Nulls = Nulls.NONE
    values: Explicit | None = None

    @property
    def arrow(self) -> pa.DataType:
        """The SQL type, as Arrow names it."""
        return self.dtype.arrow if self.values is None else arrow_type(self.values)


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """The coordinate of a dim whose values are missing or repeated in places.

    Attributes:
        codes: for each position of the dim, which of the values it has; -1: NULL.
    """

    codes: Explicit
    values: Explicit


@dataclass(frozen=True, slots=True)
class CompactTable:
    """A table's layout, without its data.

    Attributes:
        keys: dims whose rows are told apart by position, not by coordinate value.
        namespace: the Dataset that the table is one group of dims of; part of the name.
    """

    name: str
    dims: Mapping[str, Domain]
    columns: tuple[ValueColumn, ...]
    keys: Mapping[str, KeyColumn] = field(default_factory=dict)
    namespace: str | None = None

    def column(self, name: str) -> ValueColumn:
        """The value column of that name.

        Raises:
            UnknownColumn: there is none.
        """
        for column in self.columns:
            if column.name == name:
                return column
        names = ", ".join(c.name for c in self.columns)
        raise UnknownColumn(f"table {self.name!r} has no value column {name!r}; it has: {names}")

    @property
    def schema(self) -> pa.Schema:
        """As SQL sees it: key columns, then value columns."""
        keys = [
            (d, arrow_type(self.keys[d].values if d in self.keys else domain))
            for d, domain in self.dims.items()
        ]
        return pa.schema(keys + [(c.name, c.arrow) for c in self.columns])

    def input_name(self, column: ValueColumn) -> str:
        """Name of the column's array among a program's inputs."""
        return f"{self.name}.{column.name}"

    def mask_name(self, column: ValueColumn) -> str:
        """Name of the array, among a program's inputs, of where the column is not NULL."""
        return f"{self.input_name(column)} IS NOT NULL"

    def fold(self, builder: TensorBuilder) -> Table:
        """The table as a relation whose values are the program's inputs."""
        axes = {d: Axis(d, domain) for d, domain in self.dims.items()}
        columns = [self._key(builder, d, axis) for d, axis in axes.items()]
        for column in self.columns:
            node = builder.graph.input(self.input_name(column), column.shape, column.dtype)
            tensor = Tensor(node, tuple(axes[d] for d in column.dims))
            valid = self._valid(builder, column, tensor)
            if column.values is not None:
                columns.append(Coded(tensor, column.values, valid))
            elif column.domain is not None:
                columns.append(Coded(tensor, Range(column.domain, 0, column.dtype), valid))
            else:
                columns.append(Values(tensor, valid))
        names = (*self.dims, *(c.name for c in self.columns))
        return Table(names, Bag((Relation(tuple(axes.values()), tuple(columns)),)))

    def _key(self, builder: TensorBuilder, dim: str, axis: Axis) -> Column:
        key = self.keys.get(dim)
        if key is None:
            return Coordinate(axis)
        codes = key.codes.array
        code = Tensor(builder.graph.data(np.maximum(codes, 0), DType.INT64), (axis,))
        valid = None
        if (codes < 0).any():
            valid = Tensor(builder.graph.data(codes >= 0, DType.BOOL), (axis,))
        return Coded(code, key.values, valid)

    def _valid(self, builder: TensorBuilder, column: ValueColumn, tensor: Tensor) -> Tensor | None:
        if column.nulls is Nulls.MASK:
            mask = builder.graph.input(self.mask_name(column), column.shape, DType.BOOL)
            return Tensor(mask, tensor.axes)
        if column.nulls is Nulls.NAN:
            return builder.map("not", builder.map("isnan", tensor))
        return None

    def check(self, column: ValueColumn, array: Any, device: torch.device) -> torch.Tensor:
        """``array`` as the column's tensor on ``device``.

        Raises:
            ShapeError: its shape is not the registered one.
            DTypeError: its element type does not fit.
            DomainError: a value is outside the column's declared domain.
        """
        self.check_shape(column, array)
        return self.check_values(column, array, device)

    def check_shape(self, column: ValueColumn, array: Any) -> None:
        """An array must have its column's shape.

        Raises:
            ShapeError: it has another.
        """
        shape = tuple(map(int, array.shape))
        if shape != column.shape:
            raise ShapeError(
                f"table {self.name!r}, column {column.name!r}: expected shape "
                f"{_shape(column.dims, column.shape)}, got {shape}"
            )

    def check_values(
        self,
        column: ValueColumn,
        array: Any,
        device: torch.device,
        positions: Sequence[np.ndarray | None] | None = None,
    ) -> torch.Tensor:
        """Some of a column's values, of any shape, as a tensor on ``device``.

        Args:
            positions: where along each axis they are from; None: all.

        Raises:
            DTypeError: their element type does not fit.
            DomainError: a value is outside the column's declared domain.
        """
        where = f"table {self.name!r}, column {column.name!r}"
        if hasattr(type(array), "values") and not isinstance(array, torch.Tensor):
            array = array.values
        tensor = array if isinstance(array, torch.Tensor) else _from_numpy(array, where)
        wanted = TORCH_DTYPES[column.dtype]
        if tensor.dtype.is_floating_point != wanted.is_floating_point or (
            (tensor.dtype == torch.bool) != (wanted == torch.bool)
        ):
            raise DTypeError(
                f"{where}: expected {column.dtype.value} values, got {str(tensor.dtype)[6:]}"
            )
        if column.domain is not None:
            self._check_domain(column, tensor, where, positions)
        return tensor.to(device=device, dtype=wanted)

    def _check_domain(
        self,
        column: ValueColumn,
        tensor: torch.Tensor,
        where: str,
        positions: Sequence[np.ndarray | None] | None,
    ) -> None:
        if tensor.numel() == 0:
            return
        if tensor.device.type == "cpu":
            # numpy's maximum costs a fraction of torch's on arrays as small as a batch, and
            # a negative number is a huge one without its sign.
            values = np.ascontiguousarray(tensor.numpy())
            low, high = 0, int(values.view(f"u{values.itemsize}").max())
        else:
            low, high = (int(x) for x in torch.aminmax(tensor))
        if low >= 0 and high < column.domain:
            return
        outside = (tensor < 0) | (tensor >= column.domain)
        at = tuple(int(i) for i in outside.nonzero()[0])
        read = positions or (None,) * len(at)
        whole = [i if p is None else int(p[i]) for i, p in zip(at, read, strict=True)]
        place = ", ".join(f"{d}={i}" for d, i in zip(column.dims, whole, strict=True))
        raise DomainError(
            f"{where}: value {int(tensor[at])} at ({place}) is outside its domain "
            f"0..{column.domain - 1}"
        )


def _shape(dims: Sequence[str], shape: Sequence[int]) -> str:
    return "(" + ", ".join(f"{d}: {s}" for d, s in zip(dims, shape, strict=True)) + ")"


def _from_numpy(array: Any, where: str) -> torch.Tensor:
    values = np.asarray(array)
    if dtype_of_numpy(values.dtype) is None:
        raise DTypeError(f"{where}: values of type {values.dtype} are not numbers or booleans")
    if values.dtype == np.float16:
        values = values.astype(np.float32)
    native = values.astype(values.dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(np.require(native, requirements=["C", "W"]))


def table_of_array(
    name: str,
    array: Any,
    dims: Sequence[str],
    column: str,
    domain: int | None,
    coords: Mapping[str, Any] | None,
) -> CompactTable:
    """The layout of one array with named dims.

    Raises:
        ShapeError: the number of dims is not the array's, or a coordinate has another length.
        DomainError: a declared domain on a column that is not integer.
    """
    shape = tuple(int(s) for s in array.shape)
    if len(dims) != len(shape):
        raise ShapeError(f"table {name!r}: {len(dims)} dims {tuple(dims)} for shape {shape}")
    if len(set(dims)) != len(dims) or column in dims:
        raise ShapeError(f"table {name!r}: column names repeat: {(*dims, column)}")
    dtype = _dtype(array, f"table {name!r}, column {column!r}")
    if domain is not None and not dtype.is_integer:
        raise DomainError(f"table {name!r}, column {column!r}: a domain needs integer values")
    domains: dict[str, Domain] = {}
    for dim, size in zip(dims, shape, strict=True):
        domains[dim] = Range(size)
        if coords and dim in coords:
            domains[dim] = domain_of(coords[dim], f"table {name!r}, dim {dim!r}")
            if domains[dim].size != size:
                raise ShapeError(
                    f"table {name!r}, dim {dim!r}: {domains[dim].size} coordinates for size {size}"
                )
    value = ValueColumn(column, tuple(dims), shape, dtype, domain)
    return CompactTable(name, domains, (value,))


def _dtype(array: Any, where: str) -> DType:
    if isinstance(array, torch.Tensor):
        return DType(str(array.dtype).removeprefix("torch."))
    dtype = dtype_of_numpy(array.dtype)
    if dtype is None:
        raise DTypeError(f"{where}: values of type {array.dtype} are not numbers or booleans")
    return dtype

"""Registration: arrays and Datasets as tables whose data stays where it is.

A table holds references. Its arrays are read when a query runs, only those that the query
reads; what text and dates there are among the values is found out then, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from .arguments import (
    check_known,
    checked_array,
    checked_domain,
    checked_flag,
    checked_mapping,
    checked_mask,
    checked_name,
    checked_names,
)
from .coordinates import converted, coordinate, factorize, is_cftime
from .domain import Domain, Explicit, Range, placeholder
from .dtypes import DType, dtype_of_numpy
from .errors import ArgumentError, DomainError, DTypeError, ShapeError
from .tables import CompactTable, KeyColumn, Nulls, ValueColumn, table_of_array

Metadata = tuple[Mapping[Any, Any], Mapping[Any, Any]]


@dataclass(frozen=True, slots=True)
class Registered:
    """A table's layout and where its data is; replaced, never changed.

    Attributes:
        arrays: by column, an array or something that becomes one when read.
        masks: by column, where it is not NULL, for those whose array does not know.
        coordinates: by dim, values as registered (None: as SQL has them) and metadata.
        dataset: what xarray-sql may read instead, None for arrays.
        coded: columns of text or dates, whose distinct values are not known yet.
    """

    table: CompactTable
    arrays: Mapping[str, Any]
    masks: Mapping[str, Any] = field(default_factory=dict)
    coordinates: Mapping[str, tuple[np.ndarray | None, Metadata]] = field(default_factory=dict)
    dataset: Any = None
    coded: tuple[str, ...] = ()

    def resolved(self) -> Registered:
        """The table with its columns of text and dates read and coded, as of now.

        Raises:
            DTypeError: values of a type that SQL does not have.
        """
        if not self.coded:
            return self
        columns, arrays, masks = [], dict(self.arrays), dict(self.masks)
        for column in self.table.columns:
            if column.name in self.coded:
                where = f"table {self.table.name!r}, column {column.name!r}"
                values, valid = extract(self.arrays[column.name], self.masks.get(column.name))
                encoding = getattr(self.arrays[column.name], "encoding", {})
                codes, distinct = factorize(converted(np.asarray(values), encoding, where), where)
                known = codes >= 0 if valid is None else (codes >= 0) & np.asarray(valid)
                arrays[column.name] = np.maximum(codes, 0)
                if not len(distinct):
                    distinct = placeholder(distinct.dtype)
                full = bool(known.all())
                masks[column.name] = None if full else known
                column = replace(
                    column,
                    values=Explicit(distinct),
                    nulls=Nulls.NONE if full else Nulls.MASK,
                )
            columns.append(column)
        return replace(
            self,
            table=replace(self.table, columns=tuple(columns)),
            arrays=arrays,
            masks=masks,
            coded=(),
        )


def registrations(
    name: str,
    data: Any,
    dims: Sequence[str] | None,
    column: str,
    domain: int | Mapping[str, int] | None,
    coords: Mapping[str, Any] | None,
    valid: Any,
    nan_is_null: bool,
) -> Mapping[str, Registered]:
    """The tables that ``data`` becomes, by name.

    Raises:
        ArgumentError, UnknownColumn: an argument is of the wrong kind, or for something that
            the data does not have.
        ShapeError, DTypeError, DomainError: the data does not have that form.
    """
    where = f"table {checked_name(name, 'the name of the table')!r}"
    nan_is_null = checked_flag(nan_is_null, f"{where}: nan_is_null")
    if hasattr(data, "data_vars"):
        _refuse_for_dataset(where, dims=dims, coords=coords)
        return _of_dataset(
            name,
            data,
            checked_mapping(domain, f"{where}: domain of a Dataset", "{'token': 50}"),
            checked_mapping(valid, f"{where}: valid of a Dataset", "{'val': mask}"),
            nan_is_null,
        )
    column = checked_name(column, f"{where}: column")
    names = None if dims is None else checked_names(dims, f"{where}: dims")
    coords = checked_mapping(coords, f"{where}: coords", "{'i': [10, 20]}")
    if hasattr(data, "coords"):
        if column == "val" and data.name is not None:
            column = str(data.name)
        dataset = _dataset_of(where, data, names, column, coords)
        domains = domain if isinstance(domain, Mapping) else {column: domain}
        masks = {} if valid is None else {column: valid}
        return _of_dataset(name, dataset, domains, masks, nan_is_null)
    data = checked_array(data, where)
    if names is None:
        raise ShapeError(f"{where}: an array needs dims=(...), the name of each axis")
    domains = domain if isinstance(domain, Mapping) else {column: domain}
    check_known(domains, (column,), f"{where}: domain is given for column")
    check_known(coords, names, f"{where}: coords are given for dim")
    bound = domains.get(column)
    return {name: _of_array(name, data, names, column, bound, coords, valid, nan_is_null)}


def _refuse_for_dataset(where: str, **options: Any) -> None:
    """A Dataset has names and coordinates of its own."""
    for option, value in options.items():
        if value is not None:
            raise ArgumentError(
                f"{where}: {option}= is for arrays; change the Dataset with rename() or "
                "assign_coords() before registering it"
            )


def _dataset_of(
    where: str,
    array: Any,
    dims: tuple[str, ...] | None,
    column: str,
    coords: Mapping[str, Any],
) -> Any:
    if dims is not None:
        if len(dims) != len(array.dims):
            raise ShapeError(f"{where}: {len(dims)} dims {dims} for shape {array.shape}")
        if len(set(dims)) != len(dims):
            raise ShapeError(f"{where}: column names repeat: {(*dims, column)}")
    try:
        if dims is not None:
            array = array.rename(dict(zip(array.dims, dims, strict=True)))
        check_known(coords, map(str, array.dims), f"{where}: coords are given for dim")
        array = array.assign_coords({d: (d, np.asarray(v)) for d, v in coords.items()})
        # A Dataset orders its dims by its variables: the array first keeps the array's order.
        bare = array.drop_vars(list(array.coords)).to_dataset(name=column)
        return bare.assign_coords(array.coords)
    except ValueError as error:
        raise ShapeError(f"{where}: {error}") from error


def _of_array(
    name: str,
    array: Any,
    dims: Sequence[str],
    column: str,
    domain: int | None,
    coords: Mapping[str, Any],
    valid: Any,
    nan_is_null: bool,
) -> Registered:
    where = f"table {name!r}, column {column!r}"
    domain, valid = checked_domain(domain, where), checked_mask(valid, where)
    stand_in = _StandIn(tuple(map(int, array.shape)), _element(array, where))
    table = table_of_array(name, stand_in, dims, column, domain, None)
    domains, keys = dict(table.dims), {}
    for dim, given in coords.items():
        at = f"table {name!r}, dim {dim!r}"
        values = converted(np.asarray(given), {}, at)
        if values.shape != (domains[dim].size,):
            raise ShapeError(f"{at}: {values.size} coordinates for size {domains[dim].size}")
        domains[dim], key = coordinate(values, at, nan_is_null)
        if key is not None:
            keys[dim] = key
    value = replace(table.columns[0], nulls=_nulls(array, stand_in.dtype, valid, nan_is_null))
    _check_mask(valid, value, where)
    return Registered(
        CompactTable(name, domains, (value,), keys),
        {column: array},
        {column: valid},
        coded=() if _is_numeric(array) else (column,),
    )


@dataclass(frozen=True, slots=True)
class _StandIn:
    """Shape and element type of an array that is not to be read."""

    shape: tuple[int, ...]
    dtype: np.dtype


def _element(array: Any, where: str) -> np.dtype:
    """Element type of an array; that of codes for text and dates."""
    if isinstance(array, torch.Tensor):
        name = str(array.dtype).removeprefix("torch.")
        try:
            return DType(name).numpy
        except ValueError:
            raise DTypeError(
                f"{where}: values of type {name} are not supported; use a float, integer or bool"
            ) from None
    dtype = getattr(array.dtype, "numpy_dtype", array.dtype)
    if isinstance(dtype, np.dtype) and dtype_of_numpy(dtype) is not None:
        return dtype
    if not isinstance(dtype, np.dtype) or dtype.kind in "UOTmM":
        return np.dtype(np.int64)
    raise DTypeError(f"{where}: values of type {dtype} are not numbers, booleans, dates or text")


def _is_numeric(array: Any) -> bool:
    if isinstance(array, torch.Tensor):
        return True
    dtype = getattr(array.dtype, "numpy_dtype", array.dtype)
    return isinstance(dtype, np.dtype) and dtype_of_numpy(dtype) is not None


def _is_extension(array: Any) -> bool:
    """Whether an array is a pandas one of a nullable type."""
    return hasattr(array, "isna") and not isinstance(getattr(array, "dtype", None), np.dtype)


def _nulls(array: Any, dtype: np.dtype, valid: Any, nan_is_null: bool) -> Nulls:
    if valid is not None or isinstance(array, np.ma.MaskedArray) or _is_extension(array):
        return Nulls.MASK
    return Nulls.NAN if nan_is_null and dtype.kind == "f" and _is_numeric(array) else Nulls.NONE


def _check_mask(valid: Any, column: ValueColumn, where: str) -> None:
    if valid is not None and tuple(valid.shape) != column.shape:
        raise ShapeError(
            f"{where}: valid= has shape {tuple(valid.shape)}, the array {column.shape}"
        )


def extract(array: Any, mask: Any) -> tuple[np.ndarray | torch.Tensor, Any]:
    """What an array holds now: values, with anything where NULL, and where not NULL.

    Lazy arrays are read here.
    """
    if isinstance(array, torch.Tensor):
        return array, mask
    if isinstance(array, np.ma.MaskedArray):
        own = ~np.ma.getmaskarray(array)
        values = np.where(own, array.data, np.zeros((), array.dtype))
    elif _is_extension(array):
        own = ~np.asarray(array.isna())
        dtype = getattr(array.dtype, "numpy_dtype", np.dtype(object))
        values = array.to_numpy(dtype=dtype, na_value=None if dtype.kind == "O" else dtype.type(0))
    else:
        own = None
        # Asked of the type: a lazy array would be computed twice.
        values = array.values if hasattr(type(array), "values") else np.asarray(array)
    if mask is not None:
        given = _booleans(mask)
        own = given if own is None else own & given
    return values, own


def _booleans(mask: Any) -> np.ndarray:
    if isinstance(mask, torch.Tensor):
        return mask.detach().cpu().numpy()
    return np.asarray(mask.values if hasattr(type(mask), "values") else mask, dtype=bool)


def _of_dataset(
    name: str,
    dataset: Any,
    domains: Mapping[str, int],
    masks: Mapping[str, Any],
    nan_is_null: bool,
) -> Mapping[str, Registered]:
    """One table over all dims, if some variable has them all, and one for each group of dims."""
    if not dataset.data_vars:
        raise ShapeError(f"table {name!r}: the Dataset has no data variables")
    groups: dict[tuple[str, ...], list[Any]] = {}
    for variable, data in dataset.data_vars.items():
        groups.setdefault(tuple(map(str, data.dims)), []).append(variable)
    named = [str(v) for v in dataset.variables]
    for option, given in (("domain", domains), ("valid", masks)):
        check_known(given, named, f"table {name!r}: {option} is given for variable")
    _refuse_repeated(name, dataset)
    shared = _Coordinates.of(name, dataset, nan_is_null)
    tables = {}
    if any(set(dims) == set(map(str, dataset.sizes)) for dims in groups):
        tables[name] = _of_group(name, None, dataset, shared, domains, masks, nan_is_null)
    if len(groups) > 1:
        for dims, variables in groups.items():
            local = "_".join(dims) or "scalar"
            group = _of_group(
                f"{name}.{local}", name, dataset[variables], shared, domains, masks, nan_is_null
            )
            tables[group.table.name] = group
    return tables


def _refuse_repeated(name: str, dataset: Any) -> None:
    """Names that are different in xarray may be one in SQL: 1 and '1', or a dim and a variable."""
    columns = [*map(str, dataset.sizes), *(variable for variable, _ in _variables(dataset))]
    for column in columns:
        checked_name(column, f"table {name!r}: a dim or variable")
    repeated = {column for column in columns if columns.count(column) > 1}
    if repeated:
        raise ShapeError(
            f"table {name!r}: several dims or variables are named {', '.join(sorted(repeated))}; "
            "rename them before registering"
        )


@dataclass(frozen=True, slots=True)
class _Coordinates:
    """The coordinates of a Dataset's dims, read once for all its tables."""

    domains: Mapping[str, Domain]
    keys: Mapping[str, KeyColumn]
    originals: Mapping[str, tuple[np.ndarray | None, Metadata]]

    @staticmethod
    def of(name: str, dataset: Any, nan_is_null: bool) -> _Coordinates:
        domains: dict[str, Domain] = {}
        keys: dict[str, KeyColumn] = {}
        originals: dict[str, tuple[np.ndarray | None, Metadata]] = {}
        for dim, size in dataset.sizes.items():
            where = f"table {name!r}, dim {dim!r}"
            if dim not in dataset.coords or getattr(dataset.indexes.get(dim), "nlevels", 1) > 1:
                domains[str(dim)] = Range(size)
                continue
            own = dataset.coords[dim]
            values = converted(own.values, own.encoding, where)
            domains[str(dim)], key = coordinate(values, where, nan_is_null)
            if key is not None:
                keys[str(dim)] = key
            original = own.values if is_cftime(own.values) else None
            originals[str(dim)] = (original, (own.attrs, own.encoding))
        return _Coordinates(domains, keys, originals)


def _of_group(
    name: str,
    namespace: str | None,
    dataset: Any,
    shared: _Coordinates,
    domains: Mapping[str, int],
    masks: Mapping[str, Any],
    nan_is_null: bool,
) -> Registered:
    columns, arrays, valid, coded = [], {}, {}, []
    for variable, data in _variables(dataset):
        where = f"table {name!r}, column {variable!r}"
        element = _element(data, where)
        bound = checked_domain(domains.get(variable), where)
        if bound is not None and element.kind not in "iu":
            raise DomainError(f"{where}: a domain needs integer values")
        dtype = dtype_of_numpy(element)
        assert dtype is not None
        mask = checked_mask(masks.get(variable), where)
        nulls = _nulls(data, element, mask, nan_is_null)
        column = ValueColumn(
            variable, tuple(map(str, data.dims)), tuple(data.shape), dtype, bound, nulls
        )
        _check_mask(mask, column, where)
        columns.append(column)
        arrays[variable], valid[variable] = data, mask
        if not _is_numeric(data):
            coded.append(variable)
    dims = tuple(map(str, dataset.sizes))
    return Registered(
        CompactTable(
            name,
            {d: shared.domains[d] for d in dims},
            tuple(columns),
            {d: k for d, k in shared.keys.items() if d in dims},
            namespace,
        ),
        arrays,
        valid,
        {d: o for d, o in shared.originals.items() if d in dims},
        dataset if nan_is_null and not any(m is not None for m in valid.values()) else None,
        tuple(coded),
    )


def _variables(dataset: Any) -> Iterator[tuple[str, Any]]:
    """Data variables, then coordinates that are not a dim's."""
    for variable, data in dataset.data_vars.items():
        yield str(variable), data
    for variable, data in dataset.coords.items():
        if variable not in dataset.sizes:
            yield str(variable), data

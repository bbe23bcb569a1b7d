"""Domains: the coordinate values along an axis, in order and without repeats."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from .dates import nanoseconds
from .dtypes import DType, dtype_of_numpy
from .errors import DomainError


@dataclass(frozen=True, slots=True)
class Range:
    """The integers ``start, start + 1, ..., start + size - 1``."""

    size: int
    start: int = 0
    dtype: DType = DType.INT64

    def values(self) -> np.ndarray:
        """Shape (size,), in axis order."""
        return np.arange(self.start, self.start + self.size, dtype=self.dtype.numpy)

    def describe(self) -> str:
        return f"{self.start}..{self.start + self.size - 1}" if self.size else "empty"


@dataclass(frozen=True, slots=True, eq=False)
class Explicit:
    """Coordinate values listed one by one: floats, dates, text, or uneven integers.

    Two explicit domains are equal when dtype and every value agree.
    """

    array: np.ndarray
    digest: bytes = field(init=False)

    def __post_init__(self) -> None:
        array = self.array
        content = array.tobytes() if array.dtype.hasobject is False else repr(list(array)).encode()
        digest = hashlib.sha256(f"{array.dtype}{array.shape}".encode() + content).digest()
        object.__setattr__(self, "digest", digest)

    @property
    def size(self) -> int:
        return len(self.array)

    @property
    def dtype(self) -> DType | None:
        """Numeric element type, or None where values are not numbers."""
        return dtype_of_numpy(self.array.dtype)

    def values(self) -> np.ndarray:
        return self.array

    def describe(self) -> str:
        return f"{self.array[0]}..{self.array[-1]} ({self.size})" if self.size else "empty"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Explicit) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


Domain = Range | Explicit


def domain_of(values: np.ndarray, where: str) -> Domain:
    """The domain of one-dimensional coordinate ``values``.

    Consecutive ascending integers become a :class:`Range`.

    Raises:
        DomainError: a value is repeated, missing, or a date that does not fit nanoseconds;
            ``where`` names the dimension.
    """
    values = np.asarray(values)
    if values.ndim != 1:
        raise DomainError(f"{where}: coordinate values must have one dimension, not {values.ndim}")
    if values.dtype.kind in "fc" and np.isnan(values).any():
        raise DomainError(f"{where}: a coordinate value is NaN; drop or fill it before registering")
    if values.dtype.kind in "mM" and np.isnat(values).any():
        raise DomainError(f"{where}: a coordinate value is NaT; drop or fill it before registering")
    if values.dtype.kind == "M":
        values = nanoseconds(values, where)
    dtype = dtype_of_numpy(values.dtype)
    if dtype is not None and dtype.is_integer and len(values):
        start = int(values[0])
        if np.array_equal(values, np.arange(start, start + len(values))):
            return Range(len(values), start, dtype)
    if dtype is not None and len(values) == 0:
        return Range(0, 0, dtype if dtype.is_integer else DType.INT64)
    _refuse_repeats(values, where)
    return Explicit(values)


def _refuse_repeats(values: np.ndarray, where: str) -> None:
    seen: dict[object, int] = {}
    for position, value in enumerate(distinct_keys(values)):
        if value in seen:
            raise DomainError(
                f"{where}: coordinate value {value!r} occurs at positions {seen[value]} and "
                f"{position}; a dimension's coordinates must be unique"
            )
        seen[value] = position


def positions(values: np.ndarray, domain: Domain) -> np.ndarray:
    """Position of each of ``values`` in ``domain``; -1 where it does not occur."""
    if isinstance(domain, Range) and np.asarray(values).dtype.kind in "iu":
        offset = np.asarray(values).astype(np.int64) - domain.start
        return np.where((offset >= 0) & (offset < domain.size), offset, -1)
    lookup = {value: index for index, value in enumerate(distinct_keys(domain.values()))}
    found = [lookup.get(value, -1) for value in distinct_keys(values)]
    return np.asarray(found, dtype=np.int64)


def placeholder(dtype: np.dtype) -> np.ndarray:
    """One value of a type, for a domain without any: every position must be of something."""
    return np.array([""], dtype=object) if dtype.kind == "O" else np.zeros(1, dtype)


def distinct_keys(values: np.ndarray) -> list[object]:
    """Python values that are equal exactly where SQL's are: -0.0 is not 0.0."""
    values = np.asarray(values)
    keys: list[object] = values.tolist()
    if values.dtype.kind == "f":
        keys = ["-0.0" if v == 0 and np.signbit(v) else v for v in keys]
    return keys


def common_domain(domains: list[Domain]) -> Domain:
    """The domain itself where all agree, else the union of the values in order."""
    if all(d == domains[0] for d in domains):
        return domains[0]
    values: dict[object, object] = {}
    for domain in domains:
        array = domain.values()
        values.update(zip(distinct_keys(array), array, strict=True))
    if not values:
        return domains[0]
    merged = np.asarray(sorted(values.values()))
    if merged.dtype.kind in "iu" and np.array_equal(merged, np.arange(merged[0], merged[-1] + 1)):
        return Range(len(merged), int(merged[0]))
    return Explicit(merged)

"""Elementwise functions of the tensor program: torch lowering and result type.

Comparison, logic and choice live here; SQL's scalar functions come from their table in
:mod:`sql_compact.functions.registry`. Names are Substrait's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from ..dtypes import DType
from ..functions.registry import BY_SUBSTRAIT_NAME, ScalarFunction

TORCH_DTYPES = {d: getattr(torch, d.value) for d in DType}


def _promoted(dtypes: Sequence[DType]) -> DType:
    return _promoted_type(tuple(dtypes))


@cache
def _promoted_type(dtypes: tuple[DType, ...]) -> DType:
    kinds = [d.numpy for d in dtypes if not d.is_bool] or [d.numpy for d in dtypes]
    floats = [k for k in kinds if k.kind == "f"]
    return DType(np.result_type(*(floats or kinds)).name)


def _boolean(_: Sequence[DType]) -> DType:
    return DType.BOOL


def _floating(dtypes: Sequence[DType]) -> DType:
    promoted = _promoted(dtypes)
    return promoted if promoted.is_float else DType.FLOAT64


def _second(dtypes: Sequence[DType]) -> DType:
    return _promoted(dtypes[1:])


def total_order_key(x: torch.Tensor) -> torch.Tensor:
    """Integers that order floats as IEEE 754 totalOrder does (and compare bitwise).

    DataFusion 54 compares floats this way: -0.0 < 0.0, and a NaN with a clear sign is
    above everything and equal to itself.
    """
    bits = x.contiguous().view(torch.int64 if x.dtype == torch.float64 else torch.int32)
    low = torch.iinfo(bits.dtype).max
    return torch.where(bits < 0, bits ^ low, bits)


def from_total_order_key(key: torch.Tensor) -> torch.Tensor:
    """The floats whose :func:`total_order_key` these integers are."""
    low = torch.iinfo(key.dtype).max
    bits = torch.where(key < 0, key ^ low, key)
    return bits.view(torch.float64 if key.dtype == torch.int64 else torch.float32)


def is_ordered(x: torch.Tensor) -> torch.Tensor:
    """Where torch's order of floats is the total order: no NaN and no -0.0."""
    return ~(torch.isnan(x) | ((x == 0) & torch.signbit(x)))


@dataclass(frozen=True, slots=True)
class MapFunction:
    """How an elementwise function runs, and the element type of its result.

    Attributes:
        torch: function of broadcast tensors.
        result: element type of the result from those of the operands.
        commutative: whether two operands may be exchanged.
    """

    torch: Callable[..., torch.Tensor]
    result: Callable[[Sequence[DType]], DType]
    commutative: bool = False


_CORE = {
    "maximum": MapFunction(torch.maximum, _promoted, commutative=True),
    "minimum": MapFunction(torch.minimum, _promoted, commutative=True),
    "equal": MapFunction(torch.eq, _boolean, commutative=True),
    "not_equal": MapFunction(torch.ne, _boolean, commutative=True),
    "lt": MapFunction(torch.lt, _boolean),
    "lte": MapFunction(torch.le, _boolean),
    "gt": MapFunction(torch.gt, _boolean),
    "gte": MapFunction(torch.ge, _boolean),
    "and": MapFunction(torch.logical_and, _boolean, commutative=True),
    "or": MapFunction(torch.logical_or, _boolean, commutative=True),
    "not": MapFunction(torch.logical_not, _boolean),
    "isfinite": MapFunction(torch.isfinite, _boolean),
    "isordered": MapFunction(is_ordered, _boolean),
    "total_order": MapFunction(
        total_order_key, lambda d: DType.INT64 if d[0] is DType.FLOAT64 else DType.INT32
    ),
    "from_total_order": MapFunction(
        from_total_order_key, lambda d: DType.FLOAT64 if d[0] is DType.INT64 else DType.FLOAT32
    ),
    "broadcast": MapFunction(torch.clone, _promoted),
    "where": MapFunction(torch.where, _second),
}


_RESULTS = {"float": _floating, "bool": _boolean, "same": _promoted, "integer": _promoted}
_COMMUTATIVE = {"add", "multiply"}


def _of_sql(function: ScalarFunction) -> MapFunction:
    return MapFunction(
        function.torch, _RESULTS[function.result], commutative=function.name in _COMMUTATIVE
    )


MAPS: dict[str, MapFunction] = {
    **{name: _of_sql(function) for name, function in BY_SUBSTRAIT_NAME.items()},
    **_CORE,
}


def cast_name(dtype: DType) -> str:
    """Name of the map function that casts to ``dtype``."""
    return f"cast:{dtype.value}"


def map_function(name: str) -> MapFunction:
    """The function called ``name``; KeyError when there is none."""
    if name.startswith("cast:"):
        dtype = DType(name.removeprefix("cast:"))
        return MapFunction(lambda x: x.to(TORCH_DTYPES[dtype]), lambda _: dtype)
    return MAPS[name]

"""The functions DataFusion does not have, registered on its contexts as Python functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch

from .dropout import MAX_INDICES, dropout_keep_numpy
from .registry import FUNCTIONS, STOP_GRADIENT

if TYPE_CHECKING:
    from datafusion import SessionContext

DOUBLE, BIGINT = pa.float64(), pa.int64()


@dataclass(frozen=True, slots=True)
class UserFunction:
    """An immutable function of exact argument types that returns DOUBLE."""

    name: str
    arguments: tuple[pa.DataType, ...]
    evaluate: Callable[..., pa.Array]


def _elementwise(name: str) -> UserFunction:
    lowering = FUNCTIONS[name].torch

    def evaluate(values: pa.Array) -> pa.Array:
        filled, valid = _filled(values)
        return _with_nulls(lowering(torch.from_numpy(filled)).numpy(), valid)

    return UserFunction(name, (DOUBLE,), evaluate)


def _dropout(count: int) -> UserFunction:
    def evaluate(*arguments: pa.Array) -> pa.Array:
        filled, valid = zip(*(_filled(argument) for argument in arguments), strict=True)
        return _with_nulls(dropout_keep_numpy(*filled), np.logical_and.reduce(valid))

    return UserFunction(f"dropout_keep_{count}", (DOUBLE,) + (BIGINT,) * (3 + count), evaluate)


def _filled(values: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """A writable copy with 0 in place of NULL, and where it is not NULL."""
    zero = pa.scalar(0, values.type)
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    return np.array(values.fill_null(zero).to_numpy(zero_copy_only=False)), valid


def _with_nulls(values: np.ndarray, valid: np.ndarray) -> pa.Array:
    return pa.array(values, type=DOUBLE, mask=~valid)


USER_FUNCTIONS: tuple[UserFunction, ...] = (
    *(_elementwise(name) for name in ("erf", "erfc", "log1p", "expm1")),
    *(_dropout(count) for count in range(1, MAX_INDICES + 1)),
    # ddxdb gives this one its meaning in a gradient; its value is its argument.
    UserFunction(STOP_GRADIENT, (DOUBLE,), lambda values: values),
)


def register_functions(context: SessionContext) -> None:
    """Register every function that DataFusion lacks; the SQL result type is DOUBLE for all.

    A NULL argument gives NULL. Values outside the range of ``dropout_keep`` raise ``DomainError``
    inside DataFusion, which reports it as its own error with the same text.
    """
    from datafusion import udf

    for function in USER_FUNCTIONS:
        context.register_udf(
            udf(
                function.evaluate,
                list(function.arguments),
                DOUBLE,
                "immutable",
                name=function.name,
            )
        )

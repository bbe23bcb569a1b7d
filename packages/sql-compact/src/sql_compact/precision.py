"""Precision policy: what the arithmetic of a program runs in.

SQL says DOUBLE almost everywhere (a SUM of FLOAT is DOUBLE). Training wants less, so
the precision is the user's choice, not the plan's casts:

===========  ==================  ============================================
name         elements            contractions
===========  ==================  ============================================
float64      as SQL says         as SQL says
float32      float32             float32
tf32         float32             TensorFloat-32 on CUDA (float32 elsewhere)
bfloat16     float32             bfloat16 operands, float32 accumulation
===========  ==================  ============================================

Integers and booleans are exact under every policy, and single numbers (a learning rate, a
bias correction, a dropout probability) stay as SQL says: they cost nothing.
"""

from __future__ import annotations

from enum import Enum

from .dtypes import DType
from .errors import DTypeError


class Precision(Enum):
    FLOAT64 = "float64"
    FLOAT32 = "float32"
    TF32 = "tf32"
    BFLOAT16 = "bfloat16"

    @staticmethod
    def of(name: str | Precision) -> Precision:
        """The policy of that name.

        Raises:
            DTypeError: there is no such policy.
        """
        try:
            return Precision(name)
        except ValueError:
            names = ", ".join(p.value for p in Precision)
            raise DTypeError(f"unknown precision {name!r}; choose one of {names}") from None

    def element(self, dtype: DType, rank: int) -> DType:
        """The element type that values of ``dtype`` over ``rank`` axes are computed in."""
        if rank and dtype.is_float and self is not Precision.FLOAT64:
            return DType.FLOAT32
        return dtype

"""Precision policies of the PyTorch side: what the arithmetic runs in."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from sql_oracle.errors import OracleError

PrecisionName = Literal["float64", "float32", "tf32", "bfloat16"]
PRECISIONS: tuple[PrecisionName, ...] = get_args(PrecisionName)


@dataclass(frozen=True, slots=True)
class Precision:
    """One policy.

    ``float64`` and ``float32``: everything in that type; on CUDA, float32 products do not use
    tensor cores. ``tf32``: float32 tensors, products may round their operands to TF32 (on a CPU
    this is float32). ``bfloat16``: float32 weights and state, ``torch.autocast`` runs matrix
    products in bfloat16; the models of this package widen every product to float32 again, so that
    softmax, layer norm, GELU and the loss are float32 on every device.

    Attributes:
        name: as the user writes it.
        dtype: type of weights, state and elementwise work.
        matmul: argument of ``torch.set_float32_matmul_precision``.
        autocast: whether products run in bfloat16.
    """

    name: PrecisionName
    dtype: torch.dtype
    matmul: Literal["highest", "high"]
    autocast: bool

    @property
    def numpy_dtype(self) -> npt.DTypeLike:
        """The numpy type of ``dtype``."""
        return np.float64 if self.dtype is torch.float64 else np.float32

    @contextmanager
    def active(self, device: str | torch.device) -> Iterator[None]:
        """Run a block under this policy and put PyTorch's global settings back after it."""
        kind = torch.device(device).type
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(self.matmul)
        try:
            with torch.autocast(kind, dtype=torch.bfloat16, enabled=self.autocast):
                yield
        finally:
            torch.set_float32_matmul_precision(before)


_TABLE: dict[str, Precision] = {
    "float64": Precision("float64", torch.float64, "highest", False),
    "float32": Precision("float32", torch.float32, "highest", False),
    "tf32": Precision("tf32", torch.float32, "high", False),
    "bfloat16": Precision("bfloat16", torch.float32, "highest", True),
}


def precision_policy(name: str) -> Precision:
    """The policy of that name.

    Raises:
        OracleError: no such policy.
    """
    try:
        return _TABLE[name]
    except KeyError:
        raise OracleError(f"unknown precision {name!r}; there are {', '.join(_TABLE)}") from None

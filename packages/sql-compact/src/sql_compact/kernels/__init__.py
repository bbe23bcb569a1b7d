"""Fused kernels: attention and dropout with bits from a counter-based generator.

Importing this package needs torch only; triton is imported when a kernel is launched.
"""

from .attention import (
    attention,
    attention_backward,
    attention_qkv,
    attention_qkv_backward,
)
from .dropout import dropout_mask
from .keep_bits import attention_keep_bits

__all__ = [
    "attention",
    "attention_backward",
    "attention_keep_bits",
    "attention_qkv",
    "attention_qkv_backward",
    "dropout_mask",
]

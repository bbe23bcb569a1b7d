"""SQL over compact labelled arrays: queries fold into one dense tensor program.

The entry point is :class:`CompactContext`.
"""

from .context import CompactContext
from .domain import Domain
from .errors import (
    BudgetError,
    CompactError,
    DomainError,
    DTypeError,
    InvalidSQL,
    ShapeError,
    UnknownColumn,
    UnknownTable,
    UnsupportedSQL,
)
from .precision import Precision
from .result import CompactResult

__all__ = [
    "BudgetError",
    "CompactContext",
    "CompactError",
    "CompactResult",
    "DTypeError",
    "Domain",
    "DomainError",
    "InvalidSQL",
    "Precision",
    "ShapeError",
    "UnknownColumn",
    "UnknownTable",
    "UnsupportedSQL",
]

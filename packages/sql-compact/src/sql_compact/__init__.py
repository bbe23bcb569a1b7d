"""SQL over compact labelled arrays: queries fold into one dense tensor program.

The entry point is :class:`CompactContext`.
"""

from .context import CompactContext
from .domain import Domain, Range
from .dtypes import DType
from .errors import (
    ArgumentError,
    BudgetError,
    CompactError,
    DomainError,
    DTypeError,
    InvalidSQL,
    QueryFailed,
    RowEngineWarning,
    ShapeError,
    UnknownColumn,
    UnknownTable,
    UnsupportedSQL,
)
from .functions.macros import split_ctes
from .precision import Precision
from .program import matmul_precision
from .result import CompactResult
from .statements import DenseOutput, DenseProgram, StatementTrace
from .tables import CompactTable, ValueColumn, table_of_array

__all__ = [
    "ArgumentError",
    "BudgetError",
    "CompactContext",
    "CompactError",
    "CompactResult",
    "CompactTable",
    "DType",
    "DTypeError",
    "DenseOutput",
    "DenseProgram",
    "Domain",
    "DomainError",
    "InvalidSQL",
    "Precision",
    "QueryFailed",
    "Range",
    "RowEngineWarning",
    "ShapeError",
    "StatementTrace",
    "UnknownColumn",
    "UnknownTable",
    "UnsupportedSQL",
    "ValueColumn",
    "matmul_precision",
    "split_ctes",
    "table_of_array",
]

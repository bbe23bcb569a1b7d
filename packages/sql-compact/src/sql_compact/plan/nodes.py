"""Typed, immutable query plan: what DataFusion planned, in relational terms.

Columns are referred to by position in the input row, as in Substrait. Every node is
hashable, so equal sub-plans fold once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

# --- scalar expressions ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ColumnRef:
    """The input row's column at ``index``."""

    index: int


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant; ``value`` is None for NULL."""

    value: object
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Call:
    """A scalar function of its arguments, by Substrait name."""

    name: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Cast:
    input: Expression
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Case:
    """``CASE WHEN condition THEN value ... ELSE otherwise END``."""

    branches: tuple[tuple[Expression, Expression], ...]
    otherwise: Expression | None


@dataclass(frozen=True, slots=True)
class InList:
    """``value IN (options)``."""

    value: Expression
    options: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """An aggregate over the whole partition: ``f(...) OVER (PARTITION BY ...)``."""

    function: str
    arguments: tuple[Expression, ...]
    partition: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class ScalarSubquery:
    """The one value of a query with one column and at most one row; NULL without a row."""

    plan: Plan


Expression = ColumnRef | Literal | Call | Cast | Case | InList | Window | ScalarSubquery


def map_operands(
    expression: Expression, function: Callable[[Expression], Expression]
) -> Expression:
    """The expression with ``function`` applied to each of its operands."""
    match expression:
        case Call(name, arguments):
            return Call(name, tuple(map(function, arguments)))
        case Cast(operand, kind):
            return Cast(function(operand), kind)
        case InList(value, options):
            return InList(function(value), tuple(map(function, options)))
        case Case(branches, otherwise):
            mapped = tuple((function(test), function(value)) for test, value in branches)
            return Case(mapped, None if otherwise is None else function(otherwise))
        case Window(name, arguments, partition):
            return Window(name, tuple(map(function, arguments)), tuple(map(function, partition)))
    return expression


def walk(expression: Expression) -> Iterator[Expression]:
    """The expression and its operands, theirs and so on, in no particular order.

    A loop, since expressions may nest deeper than Python recurses.
    """
    waiting = [expression]

    def wait(operand: Expression) -> Expression:
        waiting.append(operand)
        return operand

    while waiting:
        part = waiting.pop()
        yield part
        map_operands(part, wait)


# --- relations ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Read:
    """Scan of the named columns of a table, in this order."""

    table: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Values:
    """Rows written in the query itself; there may be none."""

    rows: tuple[tuple[Expression, ...], ...]
    types: tuple[pa.DataType, ...]


@dataclass(frozen=True, slots=True)
class Project:
    """The input's columns followed by the computed ones."""

    input: Plan
    expressions: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Emit:
    """The input's columns at these positions."""

    input: Plan
    columns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Filter:
    input: Plan
    condition: Expression


class JoinKind(Enum):
    """Join types by their SQL names."""

    INNER = "INNER JOIN"
    LEFT = "LEFT JOIN"
    RIGHT = "RIGHT JOIN"
    FULL = "FULL JOIN"
    LEFT_SEMI = "LEFT SEMI JOIN"
    LEFT_ANTI = "LEFT ANTI JOIN"
    RIGHT_SEMI = "RIGHT SEMI JOIN"
    RIGHT_ANTI = "RIGHT ANTI JOIN"
    LEFT_MARK = "LEFT MARK JOIN"
    RIGHT_MARK = "RIGHT MARK JOIN"


@dataclass(frozen=True, slots=True)
class Join:
    """Left columns followed by right columns (semi and anti joins: one side's only).

    A mark join keeps one side's rows and adds a boolean column: whether a row matches.

    Attributes:
        may_be_not_in: an anti or mark join that may stand for ``NOT IN (subquery)``, to which
            a NULL on either side is not the same as no match.
    """

    kind: JoinKind
    left: Plan
    right: Plan
    condition: Expression | None
    may_be_not_in: bool = False


@dataclass(frozen=True, slots=True)
class Measure:
    """One aggregate: ``function(DISTINCT arguments) FILTER (WHERE filter)``."""

    function: str
    arguments: tuple[Expression, ...]
    distinct: bool
    filter: Expression | None


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Group keys followed by measures. Without keys there is always one row."""

    input: Plan
    keys: tuple[Expression, ...]
    measures: tuple[Measure, ...]


@dataclass(frozen=True, slots=True)
class UnionAll:
    inputs: tuple[Plan, ...]


@dataclass(frozen=True, slots=True)
class SortKey:
    expression: Expression
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class Sort:
    input: Plan
    keys: tuple[SortKey, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """``LIMIT count OFFSET offset``; ``count`` is None without a limit."""

    input: Plan
    offset: int
    count: int | None


Plan = Read | Values | Project | Emit | Filter | Join | Aggregate | UnionAll | Sort | Fetch


@dataclass(frozen=True, slots=True)
class Query:
    """A whole plan and the names of its output columns."""

    root: Plan
    names: tuple[str, ...]

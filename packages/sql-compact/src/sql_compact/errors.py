"""Typed errors: every one names what is wrong and says what to do about it."""


class CompactError(Exception):
    """Base class of every error this project raises on purpose."""


class UnsupportedSQL(CompactError):
    """A SQL construct that cannot be folded into a tensor program.

    Attributes:
        operator: the SQL operator, for example ``"LEFT JOIN"``.
        reason: why it cannot be folded.
        hint: what would work instead (may be empty).
    """

    def __init__(self, operator: str, reason: str, hint: str = "") -> None:
        self.operator = operator
        self.reason = reason
        self.hint = hint
        super().__init__(f"{operator}: {reason}" + (f". {hint}" if hint else ""))


class ArgumentError(CompactError):
    """An argument of the wrong kind, or outside the range of what it means."""


class InvalidSQL(CompactError):
    """SQL text that does not parse or does not plan."""


class UnknownTable(CompactError):
    """A query names a table that is not registered."""


class UnknownColumn(CompactError):
    """A query names a column that its tables do not have."""


class DomainError(CompactError):
    """A value outside the declared domain of its column or dimension."""


class ShapeError(CompactError):
    """An array whose shape is not the registered one."""


class DTypeError(CompactError):
    """An array whose element type cannot hold what its column means."""


class BudgetError(CompactError):
    """A query whose arrays would need more memory than the budget allows."""


class QueryFailed(CompactError):
    """A valid query that DataFusion could not finish on rows, such as a division by zero."""


class RowEngineWarning(UserWarning):
    """A query ran on DataFusion's rows because it has no tensor form; the reason is named."""

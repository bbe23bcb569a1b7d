"""Typed errors of the oracle. A disagreement of numbers is a result, not an error."""

from collections.abc import Iterable

from sql_compact import CompactError


class OracleError(CompactError):
    """Base class of the oracle's own errors: what was asked for cannot be judged."""


class MissingFile(OracleError):
    """A file the user named, or a recorded run, is not there or cannot be read."""


class UnwritableFile(OracleError):
    """A file the user named for a record cannot be written."""


class MissingPackage(OracleError):
    """An optional package that this check needs is not installed."""


class ModelMismatch(OracleError):
    """A model whose structure, shapes or configuration are not those that were asked for."""


class BatchError(OracleError):
    """A batch that the module cannot take: wrong names, or none where one is needed."""


class StateMismatch(OracleError):
    """A session state that is not that of the module: names, shapes or optimizer slots differ."""


class MappingError(OracleError):
    """A mapping that does not connect every table with every parameter.

    Attributes:
        unmapped_tables: tables of the session that no entry of the mapping names.
        unmapped_parameters: parameters of the module that no entry of the mapping names.
        unknown_tables: tables that the mapping names and the session lacks.
        unknown_parameters: parameters that the mapping names and the module lacks.
        problems: sentences about entries whose names exist but whose shapes disagree.
    """

    def __init__(
        self,
        *,
        unmapped_tables: Iterable[str] = (),
        unmapped_parameters: Iterable[str] = (),
        unknown_tables: Iterable[str] = (),
        unknown_parameters: Iterable[str] = (),
        problems: Iterable[str] = (),
    ) -> None:
        self.unmapped_tables = tuple(unmapped_tables)
        self.unmapped_parameters = tuple(unmapped_parameters)
        self.unknown_tables = tuple(unknown_tables)
        self.unknown_parameters = tuple(unknown_parameters)
        self.problems = tuple(problems)
        lists = (
            ("SQL tables without a parameter", self.unmapped_tables),
            ("module parameters without a table", self.unmapped_parameters),
            ("mapped tables that the session does not have", self.unknown_tables),
            ("mapped parameters that the module does not have", self.unknown_parameters),
        )
        parts = [f"{title}: {', '.join(names)}" for title, names in lists if names]
        parts.extend(self.problems)
        super().__init__("the mapping does not connect both sides. " + "; ".join(parts))

"""What the user gives as SQL, looked at before it becomes part of a longer statement."""

from __future__ import annotations

from typing import Any

from sql_compact import InvalidSQL, split_ctes

from .arguments import kind
from .errors import SessionError

#: What a query begins with, in the dialect of sql-compact.
_QUERIES = ("select", "values", "from", "table", "(")


def check_query(what: str, text: Any) -> None:
    """Refuse what is no query, in the words of whoever wrote it.

    Among the step's other statements it would be an error about one of these.

    Raises:
        SessionError: it is no text.
        InvalidSQL: it is no query.
    """
    if not isinstance(text, str):
        raise SessionError(f"{what} is a {kind(text)}; it must be SQL text, a string")
    query = split_ctes(text)[1].strip()
    if not query.lower().startswith(_QUERIES):
        raise InvalidSQL(f"{what}: it must be a query, and begins with {query[:20]!r}")

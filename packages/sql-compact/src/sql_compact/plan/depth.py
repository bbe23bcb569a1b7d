"""How deeply a statement nests, counted before DataFusion sees it.

DataFusion plans by recursion, and where its stack ends the whole process does. So a statement
that could come near is refused; the weights and the limit leave a factor of two and more of
an ordinary stack of 8 MiB unused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import UnsupportedSQL
from ..functions.macros import words_of
from .messages import pointed

if TYPE_CHECKING:
    from datafusion import SessionConfig

#: The most operators that one expression may chain, and what nesting counts beside them.
LIMIT = 1000
_SUBQUERY, _PARENTHESIS, _CASE = 12, 4, 2
_CHAINED = frozenset({"+", "-", "*", "/", "%", "||", "&", "|", "#", "^", "and", "or", "not"})
#: Words after which another expression begins.
_BREAKS = frozenset(
    {",", "select", "from", "where", "on", "group", "order", "having", "union"}
    | {"when", "then", "else", "join", "set", "by"}
)
_QUERY = ("select", "with", "values")


def check_depth(sql: str) -> None:
    """Refuse a statement that nests too deeply.

    Raises:
        UnsupportedSQL: naming the place and the limit.
    """
    words = words_of(sql)
    #: For each open parenthesis or CASE, what it counts, then operators chained inside so far.
    levels = [[0, 0]]
    total = 0
    for (word, offset), (following, _) in zip(words, [*words[1:], ("", 0)], strict=True):
        if word in ("(", "case"):
            weight = _CASE if word == "case" else _PARENTHESIS
            levels.append([_SUBQUERY if following in _QUERY else weight, 0])
            total += levels[-1][0]
        elif word in (")", "end") and len(levels) > 1:
            total -= sum(levels.pop())
        elif word in _CHAINED:
            levels[-1][1] += 1
            total += 1
        elif word in _BREAKS:
            total -= levels[-1][1]
            levels[-1][1] = 0
        if total > LIMIT:
            raise UnsupportedSQL(
                "expression",
                f"it nests too deeply to be planned: at most {LIMIT:,} operators in a row (or "
                f"{LIMIT // _PARENTHESIS} parentheses, {LIMIT // _SUBQUERY} subqueries)",
                pointed(
                    "Split it into common tables (WITH), or store numbers as a table", sql, offset
                ),
            )


def session_config() -> SessionConfig:
    """Settings of a session of DataFusion that plans what :func:`check_depth` lets through."""
    from datafusion import SessionConfig  # only now: it takes long to import

    return SessionConfig().set("datafusion.sql_parser.recursion_limit", str(LIMIT))

"""What DataFusion says about a query, as typed errors that point at the place."""

from __future__ import annotations

import re

from ..errors import CompactError, InvalidSQL, UnknownColumn, UnknownTable, UnsupportedSQL

_KINDS: tuple[tuple[str, type[CompactError]], ...] = (
    (r"table '.*?' not found|No table named", UnknownTable),
    (r"Schema contains duplicate|Ambiguous reference", InvalidSQL),
    (r"No field named|Schema error", UnknownColumn),
)
_NOT_IMPLEMENTED = re.compile(r'NotImplemented\("(.*)"\)|feature is not implemented: ([^\n]*)')
_LINE_AND_COLUMN = re.compile(r"at Line: (\d+), Column: (\d+)")
#: The name that a message is about; the place is where it is first written.
_NAMED = re.compile(
    r"No field named ([^\s,]+?)\.?(?:\s|,|$)|duplicate qualified field name ([^\s.]+)\."
    r"|Ambiguous reference to unqualified field (\S+)|table '([^']+)' not found"
    r"|Invalid function '([^']+)'"
    r"|[Cc]olumn \"([^\"]+)\" must appear|[Ff]unction '([^']+)'"
)
#: What to do about some of them.
_ADVICE = (
    (r"Schema contains duplicate", "Give each table an alias of its own: FROM w AS a, w AS b"),
    (r"Ambiguous reference", "Write its table or alias before it, as in w.val"),
)
_NOISE = re.compile(
    r"DataFusion error: |\.?\nThis issue was likely caused by a bug in DataFusion's code\..*"
    r"|Internal error: |SQL error: ParserError\(|datafusion\.public\.|Error during planning: "
    r"|Schema error: ",
    re.DOTALL,
)
_EXCERPT = 300


def typed_error(error: Exception, sql: str) -> CompactError:
    """An exception of DataFusion as one of this package's."""
    if isinstance(error, CompactError):
        return error
    message = str(error)
    offset = place(message, sql)
    unsupported = _NOT_IMPLEMENTED.search(message)
    if unsupported:
        return UnsupportedSQL(
            next(filter(None, unsupported.groups())),
            f"DataFusion cannot hand over a plan with it, in: {_shortened(sql)}",
        )
    advice = "".join(f". {a}" for pattern, a in _ADVICE if re.search(pattern, message))
    kind = next((k for pattern, k in _KINDS if re.search(pattern, message)), InvalidSQL)
    plain = _NOISE.sub("", message)
    if "ParserError" in message:
        plain = _LINE_AND_COLUMN.sub("", plain).rstrip(')"').strip().strip('"').strip()
    return kind(pointed(plain + advice, sql, offset))


def is_invalid(error: Exception) -> bool:
    """Whether DataFusion refuses a query itself, though only where it is optimized or run."""
    return "Error during planning" in str(error)


def place(message: str, sql: str) -> int | None:
    """Offset in ``sql`` of what a message of DataFusion is about; None if it names nothing."""
    found = _LINE_AND_COLUMN.search(message)
    if found:
        line, column = int(found[1]), int(found[2])
        lines = sql.split("\n")
        if 1 <= line <= len(lines):
            return sum(len(text) + 1 for text in lines[: line - 1]) + column - 1
    if "found: EOF" in message:
        return len(sql.rstrip())
    named = _NAMED.search(message)
    if named is None:
        return None
    name = next(filter(None, named.groups())).replace('"', "").split(".")[-1]
    return written(name, sql)


def written(name: str, sql: str) -> int | None:
    """Offset of the first place where a word is written."""
    found = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", sql, re.IGNORECASE)
    return None if found is None else found.start()


def pointed(message: str, sql: str, offset: int | None) -> str:
    """The message with line and column, and a caret under the place."""
    if offset is None:
        return f"{message}\nin: {_shortened(sql)}"
    before = sql[:offset]
    line = before.count("\n") + 1
    column = offset - (before.rfind("\n") + 1) + 1
    text = sql.split("\n")[line - 1]
    start = max(0, column - _EXCERPT // 2)
    shown = text[start : start + _EXCERPT]
    caret = " " * (column - 1 - start) + "^"
    return f"{message}\nat line {line}, column {column}:\n    {shown}\n    {caret}"


def _shortened(sql: str) -> str:
    return sql if len(sql) <= _EXCERPT else sql[:_EXCERPT] + " ..."

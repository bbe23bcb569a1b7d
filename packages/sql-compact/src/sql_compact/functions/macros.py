"""Rewriting of SQL text before it is planned: macros and the split into common table expressions.

Works on tokens, so names inside quotes, strings and comments are never touched, and keeps the
user's text verbatim everywhere else.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import TokenError

from ..errors import InvalidSQL, ShapeError, UnsupportedSQL
from .dropout import MAX_INDICES
from .registry import FUNCTIONS, STOP_GRADIENT, ScalarFunction

DROPOUT = "dropout_keep"
LOG = "log"
# Words before a name that make it a table or an alias with a column list, not a call.
_BEFORE_TABLE = frozenset({"as", "from", "into", "join", "recursive", "table", "with", "."})


class CommonTable(NamedTuple):
    """One ``name (columns) AS (body)`` of a WITH clause; names as written, quotes included."""

    name: str
    columns: tuple[str, ...] | None
    body: str


class _Tokenizer(Postgres.Tokenizer):
    """The lexical rules of DataFusion's default dialect: PostgreSQL's, and backticks quote too."""

    IDENTIFIERS = ['"', "`"]  # noqa: RUF012


@dataclass(frozen=True, slots=True)
class _Lexeme:
    """A token as written, and where: ``sql[start:stop]``."""

    text: str
    start: int
    stop: int

    @property
    def word(self) -> str:
        """Lower case, for keywords and unquoted names; a quoted name keeps its quotes."""
        return self.text.lower()


def expand_macros(sql: str, *, differentiate: bool = False) -> str:
    """Rewrite calls that DataFusion or ddxdb cannot take as the user writes them.

    ``dropout_keep(p, seed, step, site, i, ...)`` becomes ``dropout_keep_<number of indices>``,
    since a registered function has one arity. ``log(x)`` becomes ``log10(x)``, because DataFusion
    cannot read its own plan of the former, and with ``differentiate`` ``log(b, x)`` becomes
    ``ln(x) / ln(b)``, for which ddxdb has rules.

    With ``differentiate``, a call ``f(e)`` of a function with a ``derivative`` in the table becomes
    ``sg(f(e)) + sg(f'(e)) * (e - sg(e))`` with ``sg`` the stop-gradient: value f(e), first
    derivative f'(e). Two limits follow from the identity. A second derivative through it is
    missing a term. And rows of DataFusion give NaN where e is infinite, unless ``e - sg(e)`` is
    folded to 0. A piecewise constant f becomes ``sg(f(e))``.

    Raises:
        ShapeError: for ``dropout_keep`` without one to four indices.
        InvalidSQL: for text without balanced parentheses or quotes.
    """
    lexemes = _lexemes(sql)
    closing = _closing_parentheses(lexemes)
    return _Expansion(sql, lexemes, closing).text(0, len(lexemes), 0, len(sql), differentiate)


def split_ctes(sql: str) -> tuple[list[CommonTable], str]:
    """Take a statement apart: the common table expressions of its WITH clause and what follows.

    Bodies and the final query are verbatim, without the trailing semicolon and what follows it.

    Raises:
        UnsupportedSQL: for WITH RECURSIVE.
        InvalidSQL: for text that is not one statement, or not the shape of a WITH clause.
    """
    lexemes = _lexemes(sql)
    while lexemes and lexemes[-1].text == ";":
        lexemes.pop()
    if not lexemes:
        raise InvalidSQL("the statement is empty")
    if any(lexeme.text == ";" for lexeme in lexemes):
        raise InvalidSQL("more than one statement; pass one at a time")
    closing = _closing_parentheses(lexemes)
    stop = lexemes[-1].stop
    if lexemes[0].word != "with":
        return [], sql[lexemes[0].start : stop]
    reader = _Reader(sql, lexemes, closing, position=1)
    if reader.word() == "recursive" and reader.word(1) not in ("as", "("):
        raise UnsupportedSQL(
            "WITH RECURSIVE", "a recursive table has no fixed shape", "Unroll the recursion"
        )
    tables = [reader.common_table()]
    while reader.word() == ",":
        reader.position += 1
        tables.append(reader.common_table())
    if reader.word() == "":
        raise InvalidSQL("the WITH clause is not followed by a query")
    return tables, sql[lexemes[reader.position].start : stop]


def join_ctes(tables: Sequence[CommonTable], final: str) -> str:
    """The statement that ``split_ctes`` takes apart into these pieces."""
    if not tables:
        return final
    definitions = []
    for name, columns, body in tables:
        listed = "" if columns is None else f" ({', '.join(columns)})"
        definitions.append(f"{name}{listed} AS ({body})")
    return "WITH " + ",\n".join(definitions) + "\n" + final


def words_of(sql: str) -> list[tuple[str, int]]:
    """The tokens of a statement in lower case, quoted names with their quotes, and their offsets.

    Raises:
        InvalidSQL: the text cannot be split into tokens.
    """
    return [(lexeme.word, lexeme.start) for lexeme in _lexemes(sql)]


def identifier(text: str) -> str:
    """The name that a written identifier means: quotes removed, otherwise in lower case."""
    quote = text[:1]
    if quote in ('"', "`"):
        return text[1:-1].replace(quote * 2, quote)
    return text.lower()


@dataclass(frozen=True, slots=True)
class _Expansion:
    sql: str
    lexemes: list[_Lexeme]
    closing: dict[int, int]

    def text(self, first: int, last: int, start: int, stop: int, differentiate: bool) -> str:
        """``sql[start:stop]``, the lexemes first ... last-1, with its calls expanded."""
        pieces = []
        index = first
        while index < last:
            if not self._is_call(index):
                index += 1
                continue
            lexeme, close = self.lexemes[index], self.closing[index + 1]
            pieces.append(self.sql[start : lexeme.start])
            pieces.append(self._call(index, close, differentiate))
            start, index = self.lexemes[close].stop, close + 1
        return "".join((*pieces, self.sql[start:stop]))

    def _is_call(self, index: int) -> bool:
        lexeme = self.lexemes[index]
        if lexeme.word not in (DROPOUT, LOG) and _derivative_of(lexeme.word) is None:
            return False
        if index + 1 not in self.closing:
            return False
        if index > 0 and self.lexemes[index - 1].word in _BEFORE_TABLE:
            return False
        # `name (columns) AS (`, with or without [NOT] MATERIALIZED, defines a table.
        after = [item.word for item in self.lexemes[self.closing[index + 1] + 1 :][:4]]
        return not (after[:1] == ["as"] and (after[1:2] == ["("] or "materialized" in after[1:3]))

    def _call(self, index: int, close: int, differentiate: bool) -> str:
        name = self.lexemes[index]
        opening = self.sql[name.stop : self.lexemes[index + 1].stop]
        spans = list(self._arguments(index + 1, close))

        def arguments(differentiated: bool) -> list[str]:
            return [self.text(*span, differentiated) for span in spans]

        if name.word == DROPOUT:
            count = len(spans) - 4
            if not 1 <= count <= MAX_INDICES:
                raise ShapeError(
                    f"{DROPOUT} takes p, seed, step, site and 1 to {MAX_INDICES} indices, "
                    f"but was given {len(spans)} arguments"
                )
            return f"{name.text}_{count}{opening}{','.join(arguments(differentiate))})"
        if name.word == LOG and len(spans) == 1:
            return f"log10{opening}{arguments(differentiate)[0]})"
        plain = arguments(False)
        call = f"{name.text}{opening}{','.join(plain)})"
        if not differentiate:
            return call
        if name.word == LOG and len(spans) == 2:
            base, argument = arguments(True)
            return f"(ln({argument}) / ln({base}))"
        function = FUNCTIONS[name.word]
        if function.derivative == ("0",):
            return f"{STOP_GRADIENT}({call})"
        active = arguments(True)
        if len(spans) != len(function.derivative or ()):
            return f"{name.text}{opening}{','.join(active)})"
        return _stop_gradient_identity(function, call, plain, active)

    def _arguments(self, opening: int, close: int) -> Iterator[tuple[int, int, int, int]]:
        """Lexemes and characters of each argument between two parentheses."""
        if close == opening + 1:
            return
        first, start = opening + 1, self.lexemes[opening].stop
        index = first
        while index < close:
            if self.lexemes[index].text == ",":
                yield first, index, start, self.lexemes[index].start
                first, start = index + 1, self.lexemes[index].stop
            index = self.closing.get(index, index) + 1
        yield first, close, start, self.lexemes[close].start


def _stop_gradient_identity(
    function: ScalarFunction, call: str, plain: list[str], active: list[str]
) -> str:
    # What stands inside the stop-gradient needs no derivative of its own; but both sides of the
    # difference are the same text, so that it is seen to be exactly 0.
    terms = (
        f" + {STOP_GRADIENT}({template.format(*plain)})"
        f" * (({argument}) - {STOP_GRADIENT}({argument}))"
        for template, argument in zip(function.derivative or (), active, strict=True)
    )
    return f"({STOP_GRADIENT}({call}){''.join(terms)})"


def _derivative_of(name: str) -> tuple[str, ...] | None:
    function = FUNCTIONS.get(name)
    return None if function is None else function.derivative


@dataclass(slots=True)
class _Reader:
    """A cursor over the WITH clause."""

    sql: str
    lexemes: list[_Lexeme]
    closing: dict[int, int]
    position: int

    def word(self, ahead: int = 0) -> str:
        index = self.position + ahead
        return self.lexemes[index].word if index < len(self.lexemes) else ""

    def common_table(self) -> CommonTable:
        if not self.word() or self.word() in ("(", ")", ","):
            raise InvalidSQL(f"expected a table name in the WITH clause, found {self.word()!r}")
        name = self.lexemes[self.position].text
        self.position += 1
        columns = None
        if self.word() == "(":
            columns = tuple(part.strip() for part in self._names())
        if self.word() != "as":
            raise InvalidSQL(f"expected AS after WITH {name}, found {self.word()!r}")
        self.position += 1
        for hint in ("not", "materialized"):
            if self.word() == hint:
                self.position += 1
        if self.word() != "(":
            raise InvalidSQL(f"expected ( after WITH {name} AS, found {self.word()!r}")
        return CommonTable(name, columns, self._parenthesized())

    def _names(self) -> list[str]:
        close = self.closing[self.position]
        names = [item.text for item in self.lexemes[self.position + 1 : close]]
        self.position = close + 1
        return [name for name in names if name != ","]

    def _parenthesized(self) -> str:
        close = self.closing[self.position]
        body = self.sql[self.lexemes[self.position].stop : self.lexemes[close].start]
        self.position = close + 1
        return body


def _lexemes(sql: str) -> list[_Lexeme]:
    try:
        tokens = _Tokenizer().tokenize(sql)
    except TokenError as error:
        if isinstance(error.__cause__, RecursionError):
            raise error.__cause__ from None
        raise InvalidSQL(f"the SQL text cannot be split into tokens: {error}") from error
    return [
        _Lexeme(sql[token.start : token.end + 1], token.start, token.end + 1) for token in tokens
    ]


def _closing_parentheses(lexemes: list[_Lexeme]) -> dict[int, int]:
    """Position of the closing parenthesis of every opening one."""
    closing: dict[int, int] = {}
    open_positions: list[int] = []
    for index, lexeme in enumerate(lexemes):
        if lexeme.text == "(":
            open_positions.append(index)
        elif lexeme.text == ")":
            if not open_positions:
                raise InvalidSQL(f"unmatched ) at character {lexeme.start}")
            closing[open_positions.pop()] = index
    if open_positions:
        start = lexemes[open_positions[-1]].start
        raise InvalidSQL(f"unmatched ( at character {start}")
    return closing

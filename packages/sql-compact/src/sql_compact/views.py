"""Views: named queries, written before a statement as common tables of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from .errors import InvalidSQL, UnknownTable
from .functions.macros import CommonTable, identifier, join_ctes, split_ctes
from .rows import mentioned

#: View names from one view to another that it reads, and so on.
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Viewed:
    """A statement with the views it reads as common tables before its own.

    Attributes:
        circles: ways from a view to a word in another's text that is its name. The word may
            be a column's; if it is a table's, the view reads itself.
    """

    statement: str
    circles: tuple[Path, ...] = ()

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Name the view that reads itself, where planning finds no table of its name.

        Raises:
            InvalidSQL: there is one.
        """
        try:
            yield
        except UnknownTable as error:
            for path in self.circles:
                if f"table '{path[-1]}'" in str(error):
                    raise InvalidSQL(
                        f"view {path[-1]!r} reads itself: {' -> '.join(path)}"
                    ) from error
            raise


def with_views(statement: str, views: Mapping[str, str]) -> Viewed:
    """Write out the views that a statement reads."""
    own, final = split_ctes(statement)
    hidden = {identifier(table.name) for table in own} & set(views)
    ordered: dict[str, None] = {}
    circles: list[Path] = []

    def visit(names: list[str], above: Path) -> None:
        for name in names:
            if name in above:
                circles.append((*above[above.index(name) :], name))
            elif name not in ordered:
                visit(_read(views, name), (*above, name))
                ordered[name] = None

    def body(name: str, above: Path) -> str:
        """A view's text, with those views inside it whose names mean something else outside."""
        inner = [n for n in _read(views, name) if n in hidden and n not in above]
        if not inner:
            return views[name]
        tables, query = split_ctes(views[name])
        outer = [CommonTable(_quoted(n), None, body(n, (*above, n))) for n in inner]
        return join_ctes([*outer, *tables], query)

    visit([name for name in mentioned(views, statement) if name not in hidden], ())
    tables = [CommonTable(_quoted(n), None, body(n, (n,))) for n in ordered if n not in hidden]
    return Viewed(join_ctes([*tables, *own], final) if tables else statement, tuple(circles))


def _read(views: Mapping[str, str], name: str) -> list[str]:
    """The views that a view may read."""
    own = {identifier(table.name) for table in split_ctes(views[name])[0]}
    return [n for n in mentioned(views, views[name]) if n not in own]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

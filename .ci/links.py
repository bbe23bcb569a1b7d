"""Find relative links in the repository's Markdown files that lead nowhere.

Usage: python .ci/links.py [FOLDER]. Exits with 1 and one line for each dead link.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

_SKIPPED_FOLDERS = frozenset({".git", ".venv", ".nox", "dist", "build", "node_modules", "runs"})
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\(\s*<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_DEFINITION = re.compile(r"^\[[^\]]+\]:\s*<?(\S+?)>?\s*$", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
_SCHEME = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*:")


def dead_links(root: Path) -> Iterator[str]:
    """Yield a line `file: link` for each relative link whose file or heading does not exist."""
    for document in sorted(root.rglob("*.md")):
        if _SKIPPED_FOLDERS.isdisjoint(document.relative_to(root).parts):
            text = document.read_text(encoding="utf-8")
            for link in _links(text):
                if not _leads_somewhere(document, link):
                    yield f"{document.relative_to(root)}: {link}"


def _links(text: str) -> list[str]:
    prose = _CODE.sub("", _FENCE.sub("", text))
    links = _LINK.findall(prose) + _DEFINITION.findall(prose)
    return [link for link in links if not _SCHEME.match(link)]


def _leads_somewhere(document: Path, link: str) -> bool:
    path, _, fragment = unquote(link).partition("#")
    target = document.parent / path if path else document
    if not target.exists():
        return False
    if not fragment or target.suffix != ".md":
        return True
    return fragment in _anchors(target.read_text(encoding="utf-8"))


def _anchors(text: str) -> set[str]:
    """Headings as the anchors that GitHub makes of them (lower case, dashes, no punctuation)."""
    headings = _HEADING.findall(_FENCE.sub("", text))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
    dead = list(dead_links(root.resolve()))
    for line in dead:
        print(f"dead link: {line}")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())

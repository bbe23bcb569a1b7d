"""Every check of the workspace, one session each; `nox -l` lists them.

Sessions run in the workspace's own environment through `uv run`, which first brings it up to
date: torch with its CUDA libraries is several gigabytes, too much for one copy a session. Only
`wheels` and `lowest` make environments of their own, because another set of installed packages
is what they test.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import tomllib
import zipfile
from pathlib import Path

import nox

ROOT = Path(__file__).parent.resolve()
PACKAGES = ("sql-compact", "sql-resident", "sql-oracle")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXCLUDE_NEWER = PROJECT["tool"]["uv"]["exclude-newer"]

# Each demo's arguments for its shortest run that still goes through every part of it.
SHORTEST_DEMOS: dict[str, tuple[str, ...]] = {
    "01_climatology.py": (),
    "02_digits_mlp.py": (),
    "03_shakespeare.py": (
        *("--layers", "1", "--heads", "2", "--width", "32", "--context", "32", "--batch", "4"),
        *("--steps", "3", "--eval-interval", "2", "--eval-batches", "1", "--sample-length", "20"),
    ),
}

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "tests"]
nox.options.error_on_missing_interpreters = True


def _uv_run(session: nox.Session, *command: str, success_codes: tuple[int, ...] = (0,)) -> None:
    session.run("uv", "run", *command, external=True, success_codes=list(success_codes))


def _split_packages(posargs: list[str]) -> tuple[list[str], list[str]]:
    """Package names among the arguments become their test folders, the rest goes to pytest."""
    chosen = [f"packages/{name}/tests" for name in posargs if name in PACKAGES]
    return chosen, [argument for argument in posargs if argument not in PACKAGES]


def _pytest(session: nox.Session, *options: str) -> None:
    folders, rest = _split_packages(session.posargs)
    _uv_run(session, "pytest", *options, *folders, *rest)


@nox.session
def tests(session: nox.Session) -> None:
    """Fast tests of everything, or of the packages named: `nox -s tests -- sql-compact`."""
    # Two processes of one thread each: most of a test is Python, which has but one.
    session.env["OMP_NUM_THREADS"] = "1"
    _pytest(session, "-n", "2", "--dist", "loadfile")


@nox.session
def slow(session: nox.Session) -> None:
    """Tests that take long (marker `slow`); takes package names like `tests`."""
    _pytest(session, "-m", "slow and not gpu")


@nox.session
def gpu(session: nox.Session) -> None:
    """Tests that need a CUDA device (marker `gpu`); takes package names like `tests`."""
    _pytest(session, "-m", "gpu")


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff's rules and format, types of the packages, dead relative links in the documents."""
    _uv_run(session, "ruff", "check")
    _uv_run(session, "ruff", "format", "--check")
    _check_types(session)
    _uv_run(session, "python", ".ci/links.py")


def _check_types(session: nox.Session) -> None:
    """Check what users see: the packages' exports, and the README examples that use them."""
    exports = sorted(str(path) for path in (ROOT / "packages").glob("*/src/*/__init__.py"))
    with tempfile.TemporaryDirectory(prefix="readme-examples-") as folder:
        examples = []
        for name in PACKAGES:
            example = Path(folder, f"{name.replace('-', '_')}_example.py")
            example.write_text(_readme_example(name), encoding="utf-8")
            examples.append(str(example))
        _uv_run(session, "mypy", *exports, *examples)


@nox.session
def wheels(session: nox.Session) -> None:
    """Build the three packages, then check each wheel alone, installed outside the repository."""
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    for name in PACKAGES:
        # From the source distribution, without the workspace: what a stranger would get.
        session.run(
            "uv", "build", "--no-sources", "--package", name, "--out-dir", str(dist), external=True
        )
    chosen = [name for name in session.posargs if name in PACKAGES]
    for name in chosen or PACKAGES:
        with tempfile.TemporaryDirectory(prefix=f"{name}-wheel-") as folder:
            _check_wheel(session, name, dist, Path(folder))


def _check_wheel(session: nox.Session, name: str, dist: Path, folder: Path) -> None:
    python = folder / "venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    # Without these, neither the repository's environment nor its sources can be found by accident.
    clean = {"VIRTUAL_ENV": None, "PYTHONPATH": None, "UV_PROJECT_ENVIRONMENT": None}

    def run(*command: str) -> None:
        session.run(*command, external=True, env=clean)

    interpreter = os.environ.get("UV_PYTHON", "3.11")
    with session.chdir(folder):
        run("uv", "venv", "--quiet", "--python", interpreter, "venv")
        wheel = next(dist.glob(f"{name.replace('-', '_')}-*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            missing = {"py.typed", "LICENSE"} - {Path(file).name for file in archive.namelist()}
        if missing:
            session.error(f"{wheel.name} lacks {', '.join(sorted(missing))}")
        install = ("uv", "pip", "install", "--quiet", "--python", str(python))
        # The package with what it declares, and its siblings from the wheels just built.
        run(*install, "--exclude-newer", EXCLUDE_NEWER, "--find-links", str(dist), str(wheel))
        run(str(python), "-c", f"import {name.replace('-', '_')}")
        example = folder / "readme_example.py"
        example.write_text(_readme_example(name), encoding="utf-8")
        run(str(python), str(example))
        # Only now the test tools, lest they bring in a dependency that the package forgot.
        requirements = PROJECT["dependency-groups"]["test"]
        run(*install, "--exclude-newer", EXCLUDE_NEWER, *requirements)
        shutil.copytree(ROOT / "packages" / name / "tests", folder / "tests")
        # Pytest's settings, alone in a folder from which no source can be imported.
        settings = shutil.copy(ROOT / "pyproject.toml", folder / "pyproject.toml")
        run(str(python), "-m", "pytest", "-q", "-c", str(settings), str(folder / "tests"))


def _readme_example(name: str) -> str:
    """The first Python block of a package's README: its example."""
    readme = (ROOT / "packages" / name / "README.md").read_text(encoding="utf-8")
    block = re.search(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    if block is None:
        raise ValueError(f"packages/{name}/README.md has no ```python block to run")
    return block.group(1)


@nox.session
def lowest(session: nox.Session) -> None:
    """Fast tests with the lowest versions that the packages' direct dependencies allow."""
    environment = ROOT / ".nox" / "lowest-direct"
    python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    session.run("uv", "venv", "--quiet", "--clear", str(environment), external=True)
    members = [argument for name in PACKAGES for argument in ("-e", f"packages/{name}")]
    install = ("uv", "pip", "install", "--python", str(python))
    session.run(*install, "--resolution", "lowest-direct", *members, external=True)
    # The test tools are no dependency of the packages: their lowest versions prove nothing.
    session.run(*install, *PROJECT["dependency-groups"]["test"], external=True)
    folders, rest = _split_packages(session.posargs)
    folders = folders or [f"packages/{name}/tests" for name in PACKAGES]
    session.run(str(python), "-m", "pytest", *folders, *rest, external=True)


@nox.session
def oracle(session: nox.Session) -> None:
    """Train beside an independent PyTorch run and compare every number; takes its arguments."""
    _uv_run(session, "sql-oracle", "check", *(session.posargs or ("--steps", "5")))


@nox.session
def bench(session: nox.Session) -> None:
    """Time the SQL step beside native PyTorch; takes the arguments of `sql-oracle bench`."""
    _uv_run(session, "sql-oracle", "bench", *session.posargs)


@nox.session
def demos(session: nox.Session) -> None:
    """Run each demo in its shortest form, or those named: `nox -s demos -- 01_climatology.py`."""
    for script in sorted((ROOT / "demos").glob("[0-9][0-9]_*.py")):
        if not session.posargs or script.name in session.posargs:
            arguments = SHORTEST_DEMOS[script.name]
            _uv_run(session, f"demos/{script.name}", *arguments)


@nox.session
def accelerators(session: nox.Session) -> None:
    """Fetch, verify and smoke-test each pinned accelerator that has a release."""
    pins = tomllib.loads((ROOT / "accelerators" / "pins.toml").read_text(encoding="utf-8"))
    for name, pin in pins.items():
        released = pin["kind"] == "package"
        _uv_run(
            session,
            *("accelerators/build.py", name, "--wheelhouse", str(ROOT / "wheelhouse")),
            # An entry without a release must say so and fail, not pretend.
            success_codes=(0,) if released else (3,),
        )

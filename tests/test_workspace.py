"""The workspace's own promises: lock-step versions, complete metadata, workflows that can run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PACKAGES = ("sql-compact", "sql-resident", "sql-oracle")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
REQUIRES_PYTHON = ">=3.11,<3.14"
PYTHONS = ("3.11", "3.12", "3.13")


def _toml(*parts: str) -> dict[str, Any]:
    return tomllib.loads(ROOT.joinpath(*parts).read_text(encoding="utf-8"))


def _project(package: str) -> dict[str, Any]:
    return _toml("packages", package, "pyproject.toml")["project"]


def _steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job.get("steps", ())]


def _nox_sessions() -> set[str]:
    source = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    return set(re.findall(r"^@nox\.session\ndef (\w+)\(", source, re.MULTILINE))


def test_all_packages_have_one_version() -> None:
    versions = {package: _project(package)["version"] for package in PACKAGES}
    versions["demos"] = _toml("demos", "pyproject.toml")["project"]["version"]
    versions["workspace"] = _toml("pyproject.toml")["project"]["version"]
    assert len(set(versions.values())) == 1, versions


@pytest.mark.parametrize("manifest", [*(f"packages/{name}" for name in PACKAGES), "demos"])
def test_siblings_are_pinned_to_that_version(manifest: str) -> None:
    version = _project("sql-compact")["version"]
    siblings = [
        requirement
        for requirement in _toml(manifest, "pyproject.toml")["project"]["dependencies"]
        if re.match(r"[\w-]+", requirement)[0] in PACKAGES  # type: ignore[index]
    ]
    assert siblings or manifest == "packages/sql-compact"
    assert all(requirement.endswith(f"=={version}") for requirement in siblings), siblings


@pytest.mark.parametrize("package", PACKAGES)
def test_metadata_is_complete(package: str) -> None:
    project = _project(package)
    folder = ROOT / "packages" / package
    assert project["name"] == package
    assert project["license"] == "Apache-2.0"
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert project["requires-python"] == REQUIRES_PYTHON
    classifiers = project["classifiers"]
    assert {f"Programming Language :: Python :: {python}" for python in PYTHONS} <= set(classifiers)
    assert "Typing :: Typed" in classifiers
    assert (folder / "src" / package.replace("-", "_") / "py.typed").is_file()
    assert project["description"] and project["keywords"] and project["urls"]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_readme_has_no_relative_links(package: str) -> None:
    """It is also the page of a package index, where they lead nowhere."""
    readme = (ROOT / "packages" / package / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]*)\)", readme)
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def test_windows_is_claimed_only_where_nothing_is_posix() -> None:
    """A package that locks files with fcntl, or needs one that does, says so."""
    claims = {
        name: "Operating System :: POSIX" in _project(name)["classifiers"] for name in PACKAGES
    }
    sources = {name: (ROOT / "packages" / name / "src").rglob("*.py") for name in PACKAGES}
    locks = {
        name: any("import fcntl" in path.read_text(encoding="utf-8") for path in paths)
        for name, paths in sources.items()
    }
    needs = {
        name: locks[name]
        or any(
            locks[other] and f"{other}==" in " ".join(_project(name)["dependencies"])
            for other in PACKAGES
        )
        for name in PACKAGES
    }
    assert claims == needs


@pytest.mark.parametrize("package", PACKAGES)
def test_the_changelog_has_the_current_version(package: str) -> None:
    changelog = (ROOT / "packages" / package / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(_project(package)['version'])}\b", changelog, re.MULTILINE)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_readme_has_an_example_that_compiles(package: str) -> None:
    readme = (ROOT / "packages" / package / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    assert blocks, "no ```python block"
    compile(blocks[0], f"{package}/README.md", "exec")


def test_the_pinned_accelerator_is_the_dependency() -> None:
    pin = _toml("accelerators", "pins.toml")["ddx"]
    dependencies = _project("sql-compact")["dependencies"]
    assert f"{pin['package']}=={pin['version']}" in dependencies
    datafusion = [item for item in pin["smoke_requires"] if item.startswith("datafusion")]
    assert datafusion and datafusion[0] in dependencies


def test_the_builder_resolves_up_to_the_workspace_date() -> None:
    date = _toml("pyproject.toml")["tool"]["uv"]["exclude-newer"]
    script = (ROOT / "accelerators" / "build.py").read_text(encoding="utf-8")
    assert f'# exclude-newer = "{date}"' in script


def test_every_nox_session_is_explained() -> None:
    source = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    documented = re.findall(r'^@nox\.session\ndef (\w+)\(.*\n    """\S', source, re.MULTILINE)
    assert set(documented) == _nox_sessions()


def test_every_demo_has_a_shortest_form() -> None:
    source = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    known = set(re.findall(r'^    "(\d\d_\w+\.py)": \(', source, re.MULTILINE))
    assert {script.name for script in (ROOT / "demos").glob("[0-9][0-9]_*.py")} <= known


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_are_valid(workflow: Path) -> None:
    content = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    # YAML 1.1 reads the key `on` as true.
    assert content["name"] and content[True]
    for name, job in content["jobs"].items():
        if "uses" in job:
            assert (ROOT / job["uses"]).is_file(), f"{name} calls an absent workflow"
            continue
        assert job["runs-on"] and job["steps"], name
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step), f"{name}: a step runs or uses"
        for needed in job.get("needs", ()):
            assert needed in content["jobs"], f"{name} needs an absent job"


def test_workflows_run_existing_sessions_only() -> None:
    called = set()
    for workflow in WORKFLOWS:
        for step in _steps(workflow):
            for sessions in re.findall(r"nox -s ([\w ]+)", step.get("run", "")):
                called.update(sessions.split())
    assert {"lint", "tests", "wheels"} <= called
    assert called <= _nox_sessions(), called - _nox_sessions()


def test_tests_run_on_every_supported_python() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))["jobs"]
    assert tuple(jobs["tests"]["strategy"]["matrix"]["python"]) == PYTHONS


def test_ci_runs_what_the_readme_says() -> None:
    command = "uv run nox -s lint tests"
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert command.removeprefix("uv ") in script
    assert command in (ROOT / "README.md").read_text(encoding="utf-8")

"""The builder's whole path with a toy package, offline, as its command line is used."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

_FOLDER = Path(__file__).parents[1]


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


toy = _module(Path(__file__).with_name("toy.py"))


@dataclass(frozen=True)
class Bench:
    """A folder with a release of the toy, its manifest, and a temporary folder to be left empty."""

    root: Path

    @property
    def wheelhouse(self) -> Path:
        return self.root / "wheelhouse"

    def write_pins(
        self,
        digests: dict[str, str],
        smoke: str = "import toyaccel\nassert toyaccel.ANSWER == 42\nprint('ok: answer')\n",
        tools: tuple[str, ...] = (),
    ) -> None:
        (self.root / "smoke.py").write_text(smoke, encoding="utf-8")
        lines = [
            "[toy]",
            'kind = "package"',
            'purpose = "Answers."',
            'package = "toyaccel"',
            f'version = "{toy.VERSION}"',
            'licence = "Apache-2.0"',
            'repository = "https://example.org/toy"',
            'commit = ""',
            'build_backend = "toy_backend"',
            f"build_tools = {list(tools)}",
            'smoke = "smoke.py"',
            "smoke_requires = []",
            "[toy.sha256]",
            *(f'"{file}" = "{digest}"' for file, digest in digests.items()),
        ]
        (self.root / "pins.toml").write_text("\n".join(lines), encoding="utf-8")

    def build(self, *arguments: str, name: str = "toy") -> subprocess.CompletedProcess[str]:
        temporary = self.root / "tmp"
        temporary.mkdir(exist_ok=True)
        environment = {key: value for key, value in os.environ.items() if "PIP_" not in key}
        environment |= {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.root / "release"),
            "PIP_NO_CACHE_DIR": "1",
            "TMPDIR": str(temporary),
        }
        script = [sys.executable, str(_FOLDER / "build.py"), name]
        options = ["--pins", str(self.root / "pins.toml"), "--wheelhouse", str(self.wheelhouse)]
        return subprocess.run(
            [*script, *options, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def assert_nothing_left(self) -> None:
        assert not self.wheelhouse.exists()
        assert list((self.root / "tmp").iterdir()) == []


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def digests(bench: Bench) -> dict[str, str]:
    return toy.write_release(bench.root / "release")


def test_a_released_wheel_reaches_the_wheelhouse(bench: Bench, digests: dict[str, str]) -> None:
    bench.write_pins(digests)
    done = bench.build()
    assert done.returncode == 0, done.stderr
    assert "ok: answer" in done.stdout
    assert [file.name for file in bench.wheelhouse.iterdir()] == [toy.WHEEL]
    released = bench.root / "release" / toy.WHEEL
    assert (bench.wheelhouse / toy.WHEEL).read_bytes() == released.read_bytes()
    assert list((bench.root / "tmp").iterdir()) == []


def test_a_wheel_is_built_from_source(bench: Bench, digests: dict[str, str]) -> None:
    toy.write_backend(bench.root / "release")
    (bench.root / "release" / toy.WHEEL).unlink()
    bench.write_pins(digests, tools=("sh" if os.name != "nt" else "cmd",))
    done = bench.build("--from-source")
    assert done.returncode == 0, done.stderr
    assert [file.name for file in bench.wheelhouse.iterdir()] == [toy.WHEEL]


@pytest.mark.parametrize("arguments", [(), ("--from-source",)], ids=["wheel", "source"])
def test_a_changed_artefact_is_refused(
    bench: Bench, digests: dict[str, str], arguments: tuple[str, ...]
) -> None:
    bench.write_pins(digests)
    file = bench.root / "release" / (toy.SDIST if arguments else toy.WHEEL)
    file.write_bytes(file.read_bytes() + b"\0")
    done = bench.build(*arguments)
    assert done.returncode == 1
    assert "not the one that was pinned" in done.stderr
    assert digests[file.name] in done.stderr
    bench.assert_nothing_left()


def test_a_digest_pinned_under_another_name_is_refused(
    bench: Bench, digests: dict[str, str]
) -> None:
    bench.write_pins({toy.WHEEL.replace("1.2.3", "1.2.2"): digests[toy.WHEEL]})
    done = bench.build()
    assert done.returncode == 1
    assert f"{toy.WHEEL} is not the one that was pinned" in done.stderr
    bench.assert_nothing_left()


def test_an_absent_release_is_explained(bench: Bench, digests: dict[str, str]) -> None:
    bench.write_pins(digests)
    (bench.root / "release" / toy.WHEEL).unlink()
    done = bench.build()
    assert done.returncode == 1
    assert f"cannot download a wheel of toyaccel=={toy.VERSION}" in done.stderr
    bench.assert_nothing_left()


def test_a_missing_tool_is_named_before_anything_is_fetched(
    bench: Bench, digests: dict[str, str]
) -> None:
    bench.write_pins(digests, tools=("no-such-compiler", "no-such-linker"))
    (bench.root / "release" / toy.SDIST).unlink()
    done = bench.build("--from-source")
    assert done.returncode == 1
    assert "needs no-such-compiler, no-such-linker on PATH" in done.stderr
    bench.assert_nothing_left()


def test_a_failed_build_is_explained(bench: Bench, digests: dict[str, str]) -> None:
    bench.write_pins(digests)  # the build backend is not among the release's files
    done = bench.build("--from-source")
    assert done.returncode == 1
    assert f"cannot build a wheel from {toy.SDIST}" in done.stderr
    bench.assert_nothing_left()


def test_a_failed_smoke_check_keeps_the_wheel_out(bench: Bench, digests: dict[str, str]) -> None:
    bench.write_pins(digests, smoke="raise SystemExit('the answer is wrong')")
    done = bench.build()
    assert done.returncode == 1
    assert "failed its smoke check" in done.stderr
    assert "the answer is wrong" in done.stderr
    bench.assert_nothing_left()


def test_a_failure_leaves_an_existing_wheelhouse_as_it_was(
    bench: Bench, digests: dict[str, str]
) -> None:
    bench.wheelhouse.mkdir()
    (bench.wheelhouse / toy.WHEEL).write_bytes(b"an earlier wheel")
    bench.write_pins(digests, smoke="raise SystemExit(1)")
    assert bench.build().returncode == 1
    assert [file.name for file in bench.wheelhouse.iterdir()] == [toy.WHEEL]
    assert (bench.wheelhouse / toy.WHEEL).read_bytes() == b"an earlier wheel"


def test_a_wheelhouse_that_is_a_file_is_explained(bench: Bench, digests: dict[str, str]) -> None:
    bench.write_pins(digests)
    bench.wheelhouse.write_text("mine", encoding="utf-8")
    done = bench.build()
    assert done.returncode == 1
    assert f"error: cannot put a wheel into {bench.wheelhouse}" in done.stderr
    assert "Traceback" not in done.stderr
    assert bench.wheelhouse.read_text(encoding="utf-8") == "mine"
    assert list((bench.root / "tmp").iterdir()) == []


@pytest.mark.parametrize("inside", [False, True], ids=["the file itself", "below it"])
def test_a_wheelhouse_that_cannot_be_is_found_out_before_anything_is_fetched(
    bench: Bench, digests: dict[str, str], inside: bool
) -> None:
    bench.write_pins(digests)
    (bench.root / "release" / toy.WHEEL).unlink()
    bench.wheelhouse.write_text("mine", encoding="utf-8")
    below = ["--wheelhouse", str(bench.wheelhouse / "below")] if inside else []
    done = bench.build(*below)
    assert done.returncode == 1
    assert "error: cannot put a wheel into" in done.stderr
    assert f"{bench.wheelhouse} is not a folder" in done.stderr
    assert list((bench.root / "tmp").iterdir()) == []


def test_the_name_of_a_package_leads_to_its_entry(bench: Bench, digests: dict[str, str]) -> None:
    bench.write_pins(digests)
    done = bench.build(name="toyaccel")
    assert done.returncode == 1
    assert "there are: toy; toyaccel is the package of toy" in done.stderr
    bench.assert_nothing_left()


def test_an_unknown_name_lists_the_known_ones(bench: Bench, digests: dict[str, str]) -> None:
    bench.write_pins(digests)
    done = bench.build(name="toi")
    assert done.returncode == 1
    assert "no accelerator is named 'toi'; there are: toy" in done.stderr
    bench.assert_nothing_left()


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (None, "cannot read the pins"),
        ("[toy", "cannot read the pins"),
        ('[toy]\nkind = "package"\npurpose = "Answers."\n', "lacks 'licence'"),
        (
            '[toy]\nkind = "wish"\npurpose = ""\nlicence = ""\nrepository = ""\ncommit = ""\n',
            "kind must be 'package' or 'design'",
        ),
    ],
    ids=["absent", "not TOML", "incomplete", "unknown kind"],
)
def test_a_bad_manifest_is_explained(bench: Bench, manifest: str | None, message: str) -> None:
    if manifest is not None:
        (bench.root / "pins.toml").write_text(manifest, encoding="utf-8")
    done = bench.build()
    assert done.returncode == 1
    assert message in done.stderr
    bench.assert_nothing_left()


def test_a_digest_of_the_wrong_length_is_refused(bench: Bench) -> None:
    bench.write_pins({toy.WHEEL: "abc"})
    done = bench.build()
    assert done.returncode == 1
    assert "is not 64 lower-case hexadecimal digits" in done.stderr


def test_einfold_states_that_it_has_no_release(tmp_path: Path) -> None:
    wheelhouse = tmp_path / "wheelhouse"
    done = subprocess.run(
        [sys.executable, str(_FOLDER / "build.py"), "einfold", "--wheelhouse", str(wheelhouse)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "no installable release" in done.stderr
    assert "xqlsystems/einfold" in done.stderr
    assert "593afada8483305ebec4898e0b4ac0a0d76c7fbc" in done.stderr
    assert not wheelhouse.exists()

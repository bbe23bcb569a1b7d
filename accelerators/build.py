# /// script
# requires-python = ">=3.11"
# dependencies = ["pip>=25.0"]
#
# [tool.uv]
# exclude-newer = "2026-11-28T00:00:00Z"
# ///
"""Fetch a pinned accelerator, verify it, prove that it works, and put its wheel in a wheelhouse.

    uv run accelerators/build.py ddx --wheelhouse wheelhouse [--from-source]

The artefact is taken by package name through pip and its sha256 is verified before anything of it
is unpacked or run. Its wheel is installed into a throwaway environment, where the smoke check named
in pins.toml must pass; only then does the wheel reach the wheelhouse. After a failure nothing is
left behind. Exit codes: 0 the wheel is in the wheelhouse; 1 a failure, explained; 3 the entry has
no release to install.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from pins import AcceleratorError, DesignPin, PackagePin, load

NO_RELEASE = 3

# Stands in for the build backend while a source distribution is downloaded. pip asks the backend
# for the metadata of whatever it downloads; this answers with the metadata that the source
# distribution carries, so that the download runs no code of the package and needs no compiler.
_METADATA_BACKEND = """\
import pathlib

def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    info = pathlib.Path(metadata_directory, "{package}-{version}.dist-info")
    info.mkdir()
    (info / "METADATA").write_bytes(pathlib.Path("PKG-INFO").read_bytes())
    return info.name
"""


class MissingTool(AcceleratorError):
    """A program that the build needs is not on PATH."""


class DownloadFailed(AcceleratorError):
    """pip could not fetch the artefact."""


class HashMismatch(AcceleratorError):
    """The artefact is not the one that was pinned."""


class BuildFailed(AcceleratorError):
    """The source distribution did not become a wheel."""


class SmokeFailed(AcceleratorError):
    """The wheel was installed, and does not do its job here."""


class NotDelivered(AcceleratorError):
    """The wheelhouse cannot take the wheel."""


def build(pin: PackagePin, wheelhouse: Path, *, from_source: bool) -> Path:
    """Take `pin` through all stages; returns the wheel's path in `wheelhouse`.

    Raises a subclass of AcceleratorError; then neither the wheelhouse nor a temporary file was
    made or changed.
    """
    _require_tools(pin, from_source=from_source)
    _require_place(wheelhouse)
    with tempfile.TemporaryDirectory(prefix=f"{pin.name}-") as folder:
        scratch = Path(folder)
        artefact = _download(pin, scratch, source=from_source)
        _verify(pin, artefact)
        wheel = _build_wheel(pin, artefact, scratch) if from_source else artefact
        _smoke(pin, wheel, scratch)
        return _deliver(wheel, wheelhouse)


def _require_tools(pin: PackagePin, *, from_source: bool) -> None:
    if importlib.util.find_spec("pip") is None:
        raise MissingTool(
            f"pip is missing from {sys.executable}; "
            "start this script with `uv run accelerators/build.py`, which provides it"
        )
    missing = [tool for tool in pin.build_tools if shutil.which(tool) is None]
    if from_source and missing:
        raise MissingTool(
            f"building {pin.package} from source needs {', '.join(missing)} on PATH; "
            "install what is missing, or leave out --from-source to use the released wheel"
        )


def _require_place(wheelhouse: Path) -> None:
    """Find out before minutes of work whether the wheelhouse can be a folder; changes nothing."""
    nearest = next(p for p in (wheelhouse, *wheelhouse.absolute().parents) if os.path.exists(p))
    if not os.path.isdir(nearest):
        raise NotDelivered(f"cannot put a wheel into {wheelhouse}: {nearest} is not a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise NotDelivered(f"cannot put a wheel into {wheelhouse}: {nearest} cannot be written to")


def _pip() -> list[str]:
    return [sys.executable, "-m", "pip"]


def _download(pin: PackagePin, scratch: Path, *, source: bool) -> Path:
    """Fetch the one artefact that fits this platform; pip refuses any other digest."""
    what = "source distribution" if source else "wheel"
    files = pin.files(source=source)
    if not files:
        raise DownloadFailed(f"the pins list no {what} of {pin.requirement}")
    requirements = scratch / "requirements.txt"
    hashes = " ".join(f"--hash=sha256:{digest}" for digest in files.values())
    requirements.write_text(f"{pin.requirement} {hashes}\n", encoding="utf-8")
    folder = scratch / "download"
    only = (
        ("--no-binary", ":all:", "--no-build-isolation") if source else ("--only-binary", ":all:")
    )
    command = [*_pip(), "download", "--no-deps", "--require-hashes", *only]
    command += ["--requirement", str(requirements), "--dest", str(folder)]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": str(_metadata_backend(pin, scratch))},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        got = re.findall(r"\bGot\s+([0-9a-f]{64})\b", done.stdout + done.stderr)
        if got:
            raise HashMismatch(_mismatch(f"the {what} of {pin.requirement}", got[-1], files))
        raise DownloadFailed(
            f"cannot download a {what} of {pin.requirement} for this platform:\n{_tail(done)}"
        )
    return next(folder.iterdir())


def _metadata_backend(pin: PackagePin, scratch: Path) -> Path:
    root = scratch / "backend"
    module = root.joinpath(*pin.build_backend.split("."))
    module.mkdir(parents=True)
    text = _METADATA_BACKEND.format(package=pin.package.replace("-", "_"), version=pin.version)
    (module / "__init__.py").write_text(text, encoding="utf-8")
    return root


def _verify(pin: PackagePin, artefact: Path) -> None:
    """The file must be the one pinned under its own name, whatever pip made of the digests."""
    digest = hashlib.sha256(artefact.read_bytes()).hexdigest()
    expected = pin.sha256.get(artefact.name)
    if digest != expected:
        pinned = {artefact.name: expected} if expected else {}
        raise HashMismatch(_mismatch(artefact.name, digest, pinned))


def _mismatch(what: str, digest: str, pinned: dict[str, str]) -> str:
    lines = [f"  pinned {expected}  {file}" for file, expected in pinned.items()]
    return "\n".join(
        [f"{what} is not the one that was pinned; nothing of it was unpacked or run"]
        + (lines or ["  pinned nothing under this name"])
        + [f"  found  {digest}"]
    )


def _build_wheel(pin: PackagePin, artefact: Path, scratch: Path) -> Path:
    folder = scratch / "built"
    done = subprocess.run(
        [*_pip(), "wheel", "--no-deps", "--wheel-dir", str(folder), str(artefact)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BuildFailed(
            f"cannot build a wheel from {artefact.name}; its build tools may need a network for "
            f"what they fetch themselves:\n{_tail(done)}"
        )
    return next(folder.glob("*.whl"))


def _smoke(pin: PackagePin, wheel: Path, scratch: Path) -> None:
    environment = scratch / "environment"
    venv.create(environment, symlinks=os.name != "nt")
    python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    install = subprocess.run(
        [
            *_pip(),
            "--python",
            str(python),
            "install",
            "--no-compile",
            str(wheel),
            *pin.smoke_requires,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if install.returncode:
        raise SmokeFailed(f"cannot install {wheel.name} for its smoke check:\n{_tail(install)}")
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    check = subprocess.run(
        [str(python), str(pin.smoke)],
        cwd=scratch,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )
    if check.returncode:
        raise SmokeFailed(f"{wheel.name} failed its smoke check {pin.smoke.name}:\n{_tail(check)}")
    print(check.stdout, end="")


def _deliver(wheel: Path, wheelhouse: Path) -> Path:
    """Put the wheel in place by a rename, so that a half-written one is never seen."""
    target = wheelhouse / wheel.name
    partial = wheelhouse / f".{wheel.name}.partial"
    try:
        wheelhouse.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(wheel, partial)
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise NotDelivered(f"cannot put {wheel.name} into {wheelhouse}: {error}") from error
    return target


def _tail(done: subprocess.CompletedProcess[str], lines: int = 15) -> str:
    return "\n".join((done.stdout + done.stderr).strip().splitlines()[-lines:])


def _explain(pin: DesignPin) -> str:
    rules = "\n".join(f"  - {rule}" for rule in pin.instead)
    return (
        f"{pin.name}: {pin.purpose}\n{pin.statement}\n"
        f"Repository: {pin.repository}\nCommit: {pin.commit}\nLicence: {pin.licence}\n"
        f"Its part is played by these rules of sql-compact:\n{rules}"
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="an entry of the pins, such as ddx")
    parser.add_argument("--wheelhouse", type=Path, required=True, help="folder for the wheel")
    parser.add_argument(
        "--from-source", action="store_true", help="build the wheel from the source distribution"
    )
    parser.add_argument(
        "--pins",
        type=Path,
        default=Path(__file__).with_name("pins.toml"),
        help="the manifest (default: pins.toml beside this script)",
    )
    arguments = parser.parse_args(argv)
    try:
        pin = load(arguments.pins, arguments.name)
        if isinstance(pin, DesignPin):
            print(_explain(pin), file=sys.stderr)
            return NO_RELEASE
        print(f"{pin.name}: {pin.requirement}, {pin.licence}, {pin.repository}")
        wheel = build(pin, arguments.wheelhouse, from_source=arguments.from_source)
    except AcceleratorError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"wheel: {wheel}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

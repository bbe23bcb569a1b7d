"""Makes a toy release by hand: a wheel, a source distribution, and the backend that builds it."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

VERSION = "1.2.3"
MODULE = "ANSWER = 42\n"
WHEEL = f"toyaccel-{VERSION}-py3-none-any.whl"
SDIST = f"toyaccel-{VERSION}.tar.gz"

# A build backend that makes the same wheel as the release's, and leaves a trace that it ran.
_BACKEND = """\
import pathlib, zipfile
from toy_wheel import write_wheel

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    module = pathlib.Path("toyaccel.py").read_text()
    return write_wheel(pathlib.Path(wheel_directory), "toyaccel", "1.2.3", {"toyaccel.py": module})
"""


def write_wheel(folder: Path, name: str, version: str, modules: dict[str, str]) -> str:
    """Write a pure wheel with these modules into `folder` and return its file name."""
    info = f"{name}-{version}.dist-info"
    files = modules | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: toy\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    record = []
    for path, text in files.items():
        digest = hashlib.sha256(text.encode()).digest()
        encoded = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        record.append(f"{path},sha256={encoded},{len(text.encode())}")
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
    file = f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(folder / file, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return file


def write_release(folder: Path) -> dict[str, str]:
    """Write the toy's wheel and source distribution; returns the digest of each file."""
    folder.mkdir(parents=True, exist_ok=True)
    write_wheel(folder, "toyaccel", VERSION, {"toyaccel.py": MODULE})
    root = f"toyaccel-{VERSION}"
    sources = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: toyaccel\nVersion: {VERSION}\n",
        "pyproject.toml": (
            '[build-system]\nrequires = ["toy-backend"]\nbuild-backend = "toy_backend"\n'
        ),
        "toyaccel.py": MODULE,
    }
    with tarfile.open(folder / SDIST, "w:gz") as archive:
        for path, text in sources.items():
            member = tarfile.TarInfo(f"{root}/{path}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return {
        file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in (WHEEL, SDIST)
    }


def write_backend(folder: Path) -> None:
    """Write the wheel of the build backend that the source distribution asks for."""
    modules = {"toy_backend.py": _BACKEND, "toy_wheel.py": Path(__file__).read_text("utf-8")}
    write_wheel(folder, "toy_backend", "1", modules)

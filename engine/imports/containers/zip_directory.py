"""The directory of a zip, read in one pass.

A person waits for it: an evaluation of 17,000 samples takes `zipfile` a tenth of a second, and this a third of it.
What is unusual (zip64, something before the zip or behind it, odd names) is left to `zipfile`.
"""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path
from typing import NamedTuple

_END = struct.Struct("<4s4H2LH")
_ENTRY = struct.Struct("<4s4xHH8xLLHHHHHLL")
_LARGE = 0xFFFFFFFF


class Member(NamedTuple):
    """What the directory says of one member; named as in `zipfile.ZipInfo`."""

    filename: str
    header_offset: int
    compress_type: int
    compress_size: int
    file_size: int
    flag_bits: int


def read(path: Path) -> tuple[Member, ...]:
    """All members in the directory's order. Raises zipfile.BadZipFile, ValueError, struct.error and what else
    `zipfile` raises for a directory that cannot be read."""
    members = _plain(path)
    if members is not None:
        return members
    with zipfile.ZipFile(path) as archive:
        return tuple(Member(*(getattr(info, name) for name in Member._fields)) for info in archive.infolist())


def _plain(path: Path) -> tuple[Member, ...] | None:
    """The members of a directory without anything unusual, else None."""
    with open(path, "rb") as file:
        end_at = file.seek(0, os.SEEK_END) - _END.size
        if end_at < 0:
            return None
        file.seek(end_at)
        magic, disk, disk_of, here, count, size, offset, comment = _END.unpack(file.read(_END.size))
        if magic != b"PK\x05\x06" or disk or disk_of or here != count or comment or offset + size != end_at:
            return None
        file.seek(offset)
        data = file.read(size)
    members: list[Member] = []
    at = 0
    while at < size:
        if at + _ENTRY.size > size:
            return None
        magic, flags, method, packed, whole, name, extra, note, _, _, _, header = _ENTRY.unpack_from(data, at)
        begin = at + _ENTRY.size
        at = begin + name + extra + note
        if magic != b"PK\x01\x02" or at > size or _LARGE in (packed, whole, header):
            return None
        raw = data[begin : begin + name]
        if not raw.isascii() or b"\0" in raw:
            return None
        members.append(Member(raw.decode(), header, method, packed, whole, flags))
    return tuple(members) if len(members) == count else None

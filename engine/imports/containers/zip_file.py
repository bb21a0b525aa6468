"""Documents in a zip: inspect-ai's `.eval` (JSON members packed with zstd, method 93, which `zipfile` of Python 3.11
refuses) and zipped JSON lines.

Members are unpacked here, with a limit on what they may unpack to.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...runs.zstd import ZstdError, ZstdFile
from ..errors import DumpError
from . import zip_directory
from .base import MAX_DOCUMENT, Found, loads
from .json_lines import lines
from .zip_directory import Member

ZSTD = 93
SUMMARIES = "summaries.json"
JOURNAL = "_journal/summaries/"
MAX_INDEX = 16 << 20
"""Bytes of an index that is read before what it is of."""
_PART = 256
_SPAN = 1 << 40  # places to go on: members, and in each its lines, or parts of an index
MAX_MEMBER = 16 << 30
"""Bytes of one member; one that claims or unpacks to more is skipped."""
MAX_WHOLE = 256 << 20
"""Bytes of a member that may be one document."""
_BLOCK = 1 << 20
_HEADER = struct.Struct("<4s22xHH")


class ZipFile:
    """`.eval` and `.zip` of any name. A place is the member's number, and a line's beginning and length in it."""

    name = "zip"

    def detect(self, head: bytes) -> bool:
        """Return whether a file begins with the magic bytes."""
        return head[:4] == b"PK\x03\x04"

    def open(self, path: Path, after: int = 0, line: int = 0) -> Iterator[Found]:
        """The members that are JSON, each with its name, an index of the others first; lines of JSON one by one."""
        stat = os.stat(path)
        members = _members(path, stat.st_size, stat.st_mtime_ns)
        begin, parts = divmod(after, _SPAN)
        for position, number in enumerate(_order(path, stat.st_size, stat.st_mtime_ns)[begin:], begin):
            at = position * _SPAN
            member = members[number]
            try:
                done = parts if position == begin else 0
                for found in _documents(path, member, number):
                    if found.length == 0:
                        yield from _parts(replace(found, after=at + _SPAN), done)
                    elif found.length > done:  # a line
                        yield replace(found, after=at + found.length)
            except DumpError as error:
                yield Found(number, 0, number + 1, at + _SPAN, problem=f"{member.filename}: {error}")

    def read(self, path: Path, offset: int, length: int) -> Any:
        """A member's document, or the line of it that `length` names."""
        members = _members(path, os.stat(path).st_size, os.stat(path).st_mtime_ns)
        if offset >= len(members):
            raise DumpError(f"{path} has changed since it was indexed: it has no member {offset} any more")
        member = members[offset]
        for found in _documents(path, member, offset):
            if found.length == length and found.problem is None:
                return found.document
        raise DumpError(f"{path}: {member.filename} has changed since it was indexed")

    def end(self, path: Path) -> int:
        """As far as `after` goes: the number of members that are read, and room for the parts of each."""
        stat = os.stat(path)
        return len(_order(path, stat.st_size, stat.st_mtime_ns)) * _SPAN


def first_names(path: Path) -> list[str]:
    """The names of the first members. Raises DumpError."""
    stat = os.stat(path)
    return [member.filename for member in _members(path, stat.st_size, stat.st_mtime_ns)[:64]]


def member_of(path: Path, name: str) -> Any:
    """The document of a small member by its name, or None."""
    stat = os.stat(path)
    return _member_of(path, name, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=32)
def _member_of(path: Path, name: str, size: int, changed: int) -> Any:
    try:
        found = next((m for m in _members(path, size, changed) if m.filename == name), None)
        return None if found is None or found.file_size > MAX_DOCUMENT else loads(_unpack(path, found))
    except (DumpError, ValueError):
        return None


def number_of(path: Path, name: str) -> int | None:
    """The place of a member by its name, or None."""
    stat = os.stat(path)
    return _numbers(path, stat.st_size, stat.st_mtime_ns).get(name)


@lru_cache(maxsize=8)
def _numbers(path: Path, size: int, changed: int) -> dict[str, int]:
    """Members by name: of one that was written again the last counts."""
    return {
        m.filename: number for number, m in enumerate(_members(path, size, changed)) if not m.filename.endswith("/")
    }


@lru_cache(maxsize=8)
def _order(path: Path, size: int, changed: int) -> list[int]:
    """The numbers of the members that are read: inspect-ai's summaries of all samples first, where they are no large
    part of a file's memory, else those of each flush; then the others as they stand."""
    members, numbers = _members(path, size, changed), _numbers(path, size, changed)
    whole = [n for name, n in numbers.items() if name == SUMMARIES]
    flushed = [n for name, n in numbers.items() if name.startswith(JOURNAL)]
    first = whole if whole and members[whole[0]].file_size <= MAX_INDEX else flushed
    first = [n for n in first if members[n].file_size <= MAX_INDEX]
    return [*first, *sorted(set(numbers.values()).difference(whole, flushed))]


def _parts(found: Found, done: int) -> Iterator[Found]:
    """A document; an index in parts behind those that are done, so that the first rows need not wait for the last."""
    inside: dict[str, Any] = found.document or {}
    rows = inside.get("document")
    is_index = inside.get("member") == SUMMARIES or str(inside.get("member")).startswith(JOURNAL)
    if not is_index or not isinstance(rows, list) or len(rows) <= _PART:
        yield found
        return
    for part in range(done, -(-len(rows) // _PART)):
        at = part * _PART
        last = at + _PART >= len(rows)
        document = {**inside, "document": rows[at : at + _PART]}
        yield replace(found, document=document, after=found.after if last else found.after - _SPAN + part + 1)


def _documents(path: Path, member: Member, number: int) -> Iterator[Found]:
    """`{"member": name, "document": …}` for each JSON document of a member; `length` is the line's number. One that is
    too large to be one document is read as lines, of which only one is in memory. Raises DumpError."""
    name = member.filename
    if member.file_size <= MAX_WHOLE:
        data = _unpack(path, member)
        if data.lstrip()[:1] not in (b"{", b"["):
            return
        try:
            yield Found(number, 0, number + 1, number + 1, {"member": name, "document": loads(data)})
            return
        except ValueError as error:
            if b"\n" not in data.strip():
                yield Found(number, 0, number + 1, number + 1, problem=f"{name}: {error}")
                return
        read = io.BytesIO(data).read
    else:
        read = _stream(path, member)
    for found in lines(read, 0, 0, grows=False):
        document = None if found.problem else {"member": name, "document": found.document}
        problem = f"{name}, line {found.line}: {found.problem}" if found.problem else None
        yield Found(number, found.line, number + 1, number + 1, document, problem)


@lru_cache(maxsize=8)
def _members(path: Path, _size: int, _changed: int) -> tuple[Member, ...]:
    try:
        return zip_directory.read(path)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
        raise DumpError(f"{path}: this zip file cannot be read ({error})") from None


def _unpack(path: Path, member: Member) -> bytes:
    """A member's bytes. Raises DumpError for what is damaged, encrypted, or unpacks to more than is sane."""
    limit = max(MAX_DOCUMENT, member.file_size)
    read = _stream(path, member, limit)
    return b"".join(iter(lambda: read(_BLOCK), b""))


def _stream(path: Path, member: Member, limit: int = MAX_MEMBER) -> Callable[[int], bytes]:
    """What reads on in a member's text. It raises DumpError, as does this, for what is damaged or encrypted, and where
    there is more than `limit`."""
    if member.file_size > MAX_MEMBER:
        raise DumpError(f"it says that it unpacks to {member.file_size >> 20} MiB; up to {MAX_MEMBER >> 20} are read")
    if member.flag_bits & 1:
        raise DumpError("it is encrypted")
    with open(path, "rb") as file:
        file.seek(member.header_offset)
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size or header[:4] != b"PK\x03\x04":
            raise DumpError("its header is damaged")
        _, name, extra = _HEADER.unpack(header)
    packed = _Packed(path, member.header_offset + _HEADER.size + name + extra, member.compress_size)
    match member.compress_type:
        case zipfile.ZIP_STORED:
            text: Any = packed
        case zipfile.ZIP_DEFLATED:
            text = _Inflated(packed)
        case _ if member.compress_type == ZSTD:
            text = ZstdFile(packed)
        case other:
            raise DumpError(f"its compression (method {other}) is not known")
    left = limit

    def read(size: int) -> bytes:
        nonlocal left
        try:
            data = text.read(size)
        except (zlib.error, ZstdError, EOFError) as error:
            raise DumpError(f"it is damaged ({error})") from None
        left -= len(data)
        if left < 0:
            raise DumpError("it unpacks to more than it says")
        return data

    return read


class _Packed(io.RawIOBase):
    """The packed bytes of a member."""

    def __init__(self, path: Path, at: int, size: int) -> None:
        self._path, self._at, self._left = path, at, size

    def readable(self) -> bool:
        """Always."""
        return True

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        size = self._left if size < 0 else min(size, self._left)
        with open(self._path, "rb") as file:
            file.seek(self._at)
            data = file.read(size)
        self._at += len(data)
        self._left -= len(data)
        return data


class _Inflated:
    """Text of a stream that is packed as `deflate`, without a header."""

    def __init__(self, packed: _Packed) -> None:
        self._packed, self._inflate = packed, zlib.decompressobj(-15)

    def read(self, size: int) -> bytes:
        """Up to so many bytes; none at the end."""
        while not self._inflate.eof:
            packed = self._inflate.unconsumed_tail or self._packed.read(_BLOCK)
            data = self._inflate.decompress(packed, size)
            if data or not packed:
                return data
        return b""

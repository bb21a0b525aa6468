"""Documents in a zip: inspect-ai's `.eval`, whose members are compressed with zstd, and zipped JSON lines."""

from __future__ import annotations

import contextlib
import io
import sys
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...runs.zstd import ZstdError
from ..errors import DumpError
from .base import MAX_DOCUMENT, Container, FoundDocument, begins_json, cached_by_file, loads
from .json_file import lines

if sys.version_info >= (3, 14):
    import zipfile
else:
    from backports.zstd import zipfile

SUMMARIES = "summaries.json"
JOURNAL = "_journal/summaries/"
MAX_INDEX = 16 << 20
"""Maximum bytes of an index that is read before its samples."""
_PART = 256
_SPAN = 1 << 40  # an offset encodes a member, and a line or a part of an index inside it
MAX_MEMBER = 16 << 30
"""Maximum bytes of one member. A larger one is skipped."""
MAX_WHOLE = 256 << 20
"""Maximum bytes of a member that is read as one document."""
_DAMAGE = (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, zlib.error, ZstdError, EOFError)


class ZipFile(Container):
    """`.eval` and `.zip` of any name. An offset holds the number of a member, and of a line in it."""

    name = "zip"

    def detect(self, head: bytes) -> bool:
        return head[:4] == b"PK\x03\x04"

    def open(self, path: Path, after: int = 0, line: int = 0) -> Iterator[FoundDocument]:
        """Yield the JSON members with their names, an index of the others first, and JSON lines one by one."""
        members = _archive(path).infolist()
        begin, parts = divmod(after, _SPAN)
        for position, number in enumerate(_order(path)[begin:], begin):
            offset = position * _SPAN
            try:
                done = parts if position == begin else 0
                for found in _documents(path, number):
                    if found.length == 0:
                        yield from _parts(replace(found, after=offset + _SPAN), done)
                    elif found.length > done:  # a line
                        yield replace(found, after=offset + found.length)
            except DumpError as error:
                yield FoundDocument(
                    number, 0, number + 1, offset + _SPAN, problem=f"{members[number].filename}: {error}"
                )

    def read(self, path: Path, offset: int, length: int) -> object:
        members = _archive(path).infolist()
        if offset >= len(members):
            raise DumpError(f"{path} has changed since it was indexed: it has no member {offset} any more")
        for found in _documents(path, offset):
            if found.length == length and found.problem is None:
                return found.document
        raise DumpError(f"{path}: {members[offset].filename} has changed since it was indexed")

    def end(self, path: Path) -> int:
        return len(_order(path)) * _SPAN


def holds_pickle(path: Path) -> bool:
    """Return whether one of the first members is a pickle."""
    try:
        return any(member.filename.endswith((".pkl", ".pickle")) for member in _archive(path).infolist()[:64])
    except (DumpError, OSError):
        return False


@cached_by_file(maxsize=32)
def member_of(path: Path, name: str) -> object:
    """Return the document of a small member by its name, or None."""
    number = numbers_of(path).get(name)
    try:
        if number is None or _archive(path).infolist()[number].file_size > MAX_DOCUMENT:
            return None
        return loads(_unpack(path, number))
    except (DumpError, ValueError):
        return None


@cached_by_file(maxsize=8)
def _archive(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except _DAMAGE as error:
        raise DumpError(f"{path}: this zip file cannot be read ({error})") from None


@cached_by_file(maxsize=8)
def numbers_of(path: Path) -> dict[str, int]:
    """Return the numbers of members by name. The last member with a name wins."""
    members = enumerate(_archive(path).infolist())
    return {member.filename: number for number, member in members if not member.filename.endswith("/")}


@cached_by_file(maxsize=8)
def _order(path: Path) -> list[int]:
    """Return the members in reading order: inspect-ai's summaries first if they are small, whether of all samples or of
    each flush, then the others."""
    members, numbers = _archive(path).infolist(), numbers_of(path)
    summaries = [n for name, n in numbers.items() if name == SUMMARIES]
    flushed = [n for name, n in numbers.items() if name.startswith(JOURNAL)]
    first = summaries if summaries and members[summaries[0]].file_size <= MAX_INDEX else flushed
    first = [n for n in first if members[n].file_size <= MAX_INDEX]
    return [*first, *sorted(set(numbers.values()).difference(summaries, flushed))]


def _parts(found: FoundDocument, done: int) -> Iterator[FoundDocument]:
    """Yield a document. An index is yielded in parts after `done`, so its first rows are visible early."""
    inside: dict[str, object] = found.document or {}
    rows = inside.get("document")
    is_index = inside.get("member") == SUMMARIES or str(inside.get("member")).startswith(JOURNAL)
    if not is_index or not isinstance(rows, list) or len(rows) <= _PART:
        yield found
        return
    for part in range(done, -(-len(rows) // _PART)):
        offset = part * _PART
        last = offset + _PART >= len(rows)
        document = {**inside, "document": rows[offset : offset + _PART]}
        yield replace(found, document=document, after=found.after if last else found.after - _SPAN + part + 1)


def _documents(path: Path, number: int) -> Iterator[FoundDocument]:
    """Yield `{"member": name, "document": …}` for each JSON document of a member. `length` is the line number.

    A member that is too large for one document is read line by line. Raises DumpError.
    """
    member = _archive(path).infolist()[number]
    name = member.filename
    if member.file_size <= MAX_WHOLE:
        data = _unpack(path, number)
        if not begins_json(data):
            return
        try:
            yield FoundDocument(number, 0, number + 1, number + 1, {"member": name, "document": loads(data)})
            return
        except ValueError as error:
            if b"\n" not in data.strip():
                yield FoundDocument(number, 0, number + 1, number + 1, problem=f"{name}: {error}")
                return
        stream: io.BufferedIOBase = io.BytesIO(data)
    else:
        stream = io.BufferedReader(_opened(path, number))
    with _readable_errors():
        for found in lines(stream, 0, 0, grows=False):
            document = None if found.problem else {"member": name, "document": found.document}
            problem = f"{name}, line {found.line}: {found.problem}" if found.problem else None
            yield FoundDocument(number, found.line, number + 1, number + 1, document, problem)


def _unpack(path: Path, number: int) -> bytes:
    with _readable_errors():
        return _opened(path, number).read()


def _opened(path: Path, number: int) -> Any:
    """Return a stream of a member's text. Raises DumpError for a damaged, encrypted or huge member."""
    archive = _archive(path)
    member = archive.infolist()[number]
    if member.file_size > MAX_MEMBER:
        raise DumpError(f"it unpacks to {member.file_size >> 20} MiB; up to {MAX_MEMBER >> 20} are read")
    if member.flag_bits & 1:
        raise DumpError("it is encrypted")
    with _readable_errors():
        return archive.open(member)


@contextlib.contextmanager
def _readable_errors() -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise DumpError(f"it is damaged ({error})") from None

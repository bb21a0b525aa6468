"""Text compressed as one stream: JSON lines, or one JSON document, inside gzip or zstd.

Offsets are bytes of the unpacked text. Without a seek table, finding a document means unpacking from the beginning. The
last stream stays open, so reading the next document only unpacks the text up to it.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import struct
import sys
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import Any, BinaryIO

from ...runs.zstd import ZstdError, ZstdFile
from ..errors import DumpError
from .base import HEAD, MAX_DOCUMENT, TO_ITS_END, Container, FoundDocument, begins_json, cached_by_file, loads, stat_of
from .json_file import JsonFile, begins_list, found_whole, is_cut, is_long_line, items, lines, loaded_or_repaired
from .session import SessionFile

MAX_TEXT = 16 << 30
"""Maximum bytes of text in one file. Anything larger counts as a decompression bomb."""
MAX_WHOLE = 1 << 30
"""Maximum bytes of text that is one JSON document."""
SKIPPABLE = 0x184D2A5E
SEEKABLE = 0x8F92EAB1


class PackedLines(Container):
    """The base of gzip and zstd. `damage`: the errors that the decompressor raises for a damaged file."""

    name = ""
    damage: tuple[type[Exception], ...] = ()

    def __init__(self) -> None:
        self._kept: tuple[object, BufferedIOBase | None, int] = None, None, 0
        """The path and state of the last file, its stream, and the stream's offset in the text."""

    @abstractmethod
    def unpacked(self, file: BinaryIO) -> BufferedIOBase:
        """Return a stream of the decompressed text of an open file."""

    def start_of(self, path: Path, offset: int) -> tuple[int, int]:
        """Return where to start unpacking to reach `offset`: an offset in the file, and the text offset there."""
        return 0, 0

    def open(self, path: Path, after: int = 0, line: int = 0) -> Iterator[FoundDocument]:
        """Yield the lines or items from text offset `after` on, or the one document (offset 0, length 0)."""
        try:
            if not (head := self._head_of_document(path)):
                documents = lines(self._at(path, after), after, line)
            else:
                documents = items(lambda at: _UpToDamage(self._at(path, at)), after, line)
                if not begins_list(head) or SessionFile().detect(head):  # a list of messages is one document
                    with contextlib.suppress(ValueError):  # several documents, or a damaged one
                        documents = iter(found_whole(*_whole_document(path, self.unpacked), length=0)[after:])
            for found in documents:
                if found.after > MAX_TEXT:
                    raise DumpError(f"it unpacks to more than {MAX_TEXT >> 30} GiB")
                yield found
        except (*self.damage, EOFError) as error:
            raise DumpError(f"{path}: the compressed text is damaged ({error})") from None

    def _head_of_document(self, path: Path) -> bytes:
        """Return the beginning of a text that is JSON but not JSON lines, else empty bytes."""
        head = b""
        with contextlib.suppress(*self.damage, EOFError), path.open("rb") as file:  # whole lines before it are read
            stream = self.unpacked(file)
            while len(head) < HEAD and (part := stream.read1(HEAD - len(head))):
                head += part
        if JsonFile().detect(head):
            return head
        if b"\n" in head:
            return b""
        whole = len(head) < HEAD
        cut = is_cut(head if whole else _UpToDamage(self._at(path, 0)).read(MAX_DOCUMENT + 1))
        return head if cut or (not whole and is_long_line(self._at(path, 0))) else b""

    def read(self, path: Path, offset: int, length: int) -> Any:
        """Return the line or item at a text offset, or the one document if `length` is 0."""
        try:
            if length == 0:
                return _whole_document(path, self.unpacked)[0]
            return loads(self._bytes(path, offset, length))
        except (*self.damage, EOFError, ValueError) as error:
            raise DumpError(f"{path}, byte {offset} of its text: {error}") from None

    def _bytes(self, path: Path, offset: int, length: int) -> bytes:
        key = (path, *stat_of(path))
        (known, stream, position), self._kept = self._kept, (None, None, 0)
        if stream is None or known != key or not self.start_of(path, offset)[1] <= position <= offset:
            stream, position = self._at(path, offset), offset
        _skip(stream, offset - position)
        data = b""
        if length == TO_ITS_END:
            data = stream.readline(MAX_DOCUMENT)
        while len(data) < length and (part := stream.read(length - len(data))):
            data += part
        self._kept = key, stream, offset + len(data)
        return data

    def _at(self, path: Path, after: int) -> BufferedIOBase:
        file = path.open("rb")
        start, text = self.start_of(path, after)
        file.seek(start)
        stream = self.unpacked(file)
        _skip(stream, after - text)
        return stream


class _UpToDamage(BufferedIOBase):
    """A stream that returns all text before its damage, and raises the error of the stream when that is read."""

    def __init__(self, stream: BufferedIOBase) -> None:
        self._stream = stream
        self._error: Exception | None = None

    def read(self, size: int | None = -1, /) -> bytes:
        parts: list[bytes] = []
        remaining = sys.maxsize if size is None or size < 0 else size
        while self._error is None and remaining > 0:
            try:
                part = self._stream.read1(remaining)
            except Exception as error:
                self._error = error
                break
            if not part:
                break
            parts.append(part)
            remaining -= len(part)
        if self._error is not None and not parts:
            raise self._error
        return b"".join(parts)


@cached_by_file(maxsize=1)
def _whole_document(path: Path, unpacked: Callable[[BinaryIO], BufferedIOBase]) -> tuple[object, str]:
    """Parse a whole text as one document, also if its end is missing. Raises ValueError."""
    with path.open("rb") as file:
        data = _UpToDamage(unpacked(file)).read(MAX_WHOLE + 1)
    if len(data) > MAX_WHOLE:
        raise DumpError(f"{path}: one JSON document of more than 1 GiB cannot be read at once; write JSON lines")
    return loaded_or_repaired(data)


class GzipLines(PackedLines):
    """`.jsonl.gz` of any name, also with several gzip members."""

    name = "json lines in gzip"
    damage = (zlib.error, gzip.BadGzipFile)

    def detect(self, head: bytes) -> bool:
        if head[:3] != b"\x1f\x8b\x08":
            return False
        try:
            text = zlib.decompressobj(wbits=31).decompress(head, 4096)
        except zlib.error:
            return True  # reported when it is opened
        return not text or begins_json(text)

    def unpacked(self, file: BinaryIO) -> BufferedIOBase:
        return gzip.GzipFile(fileobj=file, mode="rb")


class ZstdLines(PackedLines):
    """`.jsonl.zst` of any name. With a seek table (prime-rl's sealed chunks), reading a document reads one frame."""

    name = "json lines in zstd"
    damage = (ZstdError,)

    def detect(self, head: bytes) -> bool:
        return head[:4] == b"\x28\xb5\x2f\xfd"

    def unpacked(self, file: BinaryIO) -> BufferedIOBase:
        return ZstdFile(file)

    def start_of(self, path: Path, offset: int) -> tuple[int, int]:
        for begin, end, start in _seek_table(path) if offset else ():
            if end > offset:
                return begin, start
        return 0, 0

    def end(self, path: Path) -> int:
        """Return the text size from the seek table, else the file size."""
        table = _seek_table(path)
        return table[-1][1] if table else super().end(path)


@cached_by_file(maxsize=64)
def _seek_table(path: Path) -> tuple[tuple[int, int, int], ...]:
    """Return the seek table at the end of a file: for each frame its offset, and the end and beginning of its text."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size < 17:
            return ()
        file.seek(size - 9)
        frames, flags, magic = struct.unpack("<IBI", file.read(9))
        entry = 12 if flags & 0x80 else 8
        table = 8 + frames * entry + 9
        if magic != SEEKABLE or frames > 1 << 24 or table > size:
            return ()
        file.seek(size - table)
        if struct.unpack("<I", file.read(4))[0] != SKIPPABLE:
            return ()
        file.read(4)
        found, offset, text = [], 0, 0
        for _ in range(frames):
            packed, unpacked = struct.unpack("<II", file.read(entry)[:8])
            found.append((offset, text + unpacked, text))
            offset, text = offset + packed, text + unpacked
        return tuple(found)


def _skip(stream: BufferedIOBase, size: int) -> None:
    while size > 0 and (part := stream.read(min(size, 1 << 20))):
        size -= len(part)

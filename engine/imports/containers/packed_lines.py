"""Text packed as one stream: JSON lines, or one JSON document, inside gzip (`.jsonl.gz`) or zstd (`zstd_lines.py`).

Places are bytes of the text as it was before packing. Where the packing has no table of its parts, a document is found
by unpacking from the beginning; the stream that was read last is kept, so going forward costs only what lies between.
"""

from __future__ import annotations

import gzip
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DumpError
from .base import HEAD, MAX_DOCUMENT, TO_ITS_END, Found, loads
from .json_file import JsonFile, items_of
from .json_lines import lines

MAX_TEXT = 16 << 30
"""Bytes of text in one file: what claims more is no dump but a bomb."""
MAX_WHOLE = 1 << 30
"""Bytes of text that is one JSON document."""
_SKIP = 1 << 20


@dataclass
class _Open:
    """A stream in the middle of its text."""

    key: tuple[Path, int, int]
    stream: Any
    at: int


class PackedLines(ABC):
    """What gzip and zstd share. `damage`: what their readers raise for a damaged file."""

    name = ""
    damage: tuple[type[Exception], ...] = ()

    def __init__(self) -> None:
        self._kept: _Open | None = None
        self._document: tuple[tuple[Path, int, int], tuple[Any, ...]] | None = None

    @abstractmethod
    def unpacked(self, file: Any) -> Any:
        """A stream of the text of an open file."""

    def start_of(self, path: Path, offset: int) -> tuple[int, int]:
        """Where in the file to begin for a byte of the text, and which byte of the text that is."""
        return 0, 0

    def open(self, path: Path, after: int = 0, line: int = 0) -> Iterator[Found]:
        """Lines behind a byte of the text; of one document its items."""
        try:
            if self._is_document(path):
                for i, item in enumerate(self._whole(path)[after:], after):
                    yield Found(i, 0, i + 1, i + 1, item)
                return
            stream = self._at(path, after)
            yield from lines(_limited(stream), after, line)
        except (*self.damage, EOFError) as error:
            raise DumpError(f"{path}: the compressed text is damaged ({error})") from None

    def read(self, path: Path, offset: int, length: int) -> Any:
        """The line at a byte of the text; `length` 0: the item of a document."""
        try:
            if length == 0:
                items = self._whole(path)
                if offset >= len(items):
                    raise DumpError(f"{path} has changed since it was indexed: it has no item {offset} any more")
                return items[offset]
            return loads(self._bytes(path, offset, length))
        except (*self.damage, EOFError, ValueError) as error:
            raise DumpError(f"{path}, byte {offset} of its text: {error}") from None

    def _bytes(self, path: Path, offset: int, length: int) -> bytes:
        key = _key(path)
        kept, self._kept = self._kept, None
        start, text = self.start_of(path, offset)
        if kept is None or kept.key != key or not text <= kept.at <= offset:
            if kept is not None:
                kept.stream.close()
            file = path.open("rb")
            file.seek(start)
            kept = _Open(key, self.unpacked(file), text)
        _skip(kept.stream, offset - kept.at)
        data = b""
        if length == TO_ITS_END:
            data = kept.stream.readline(MAX_DOCUMENT)
        while len(data) < length and (part := kept.stream.read(length - len(data))):
            data += part
        kept.at = offset + len(data)
        self._kept = kept
        return data

    def _at(self, path: Path, after: int) -> Any:
        file = path.open("rb")
        start, text = self.start_of(path, after)
        file.seek(start)
        stream = self.unpacked(file)
        _skip(stream, after - text)
        return stream

    def _is_document(self, path: Path) -> bool:
        with path.open("rb") as file:
            return JsonFile().detect(self.unpacked(file).read(HEAD))

    def _whole(self, path: Path) -> tuple[Any, ...]:
        """The items of a text that is one document; the last such file is kept."""
        key = _key(path)
        if self._document is None or self._document[0] != key:
            with path.open("rb") as file:
                data = self.unpacked(file).read(MAX_WHOLE + 1)
            if len(data) > MAX_WHOLE:
                raise DumpError(
                    f"{path}: one JSON document of more than 1 GiB cannot be read at once; write JSON lines"
                )
            try:
                self._document = (key, items_of(data))
            except ValueError as error:
                raise DumpError(f"{path}: {error}") from None
        return self._document[1]

    def end(self, path: Path) -> int:
        """The size of the file: of its text nothing is known."""
        return path.stat().st_size


class GzipLines(PackedLines):
    """`.jsonl.gz` of any name, also of several members one after the other."""

    name = "json lines in gzip"
    damage = (zlib.error, gzip.BadGzipFile)

    def detect(self, head: bytes) -> bool:
        """The magic bytes, and text that begins as JSON does."""
        if head[:3] != b"\x1f\x8b\x08":
            return False
        try:
            text = zlib.decompressobj(wbits=31).decompress(head, 4096)
        except zlib.error:
            return True  # said to be damaged when it is opened
        return text.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[", b"")

    def unpacked(self, file: Any) -> Any:
        """Return a stream of the text."""
        return gzip.GzipFile(fileobj=file, mode="rb")


def _key(path: Path) -> tuple[Path, int, int]:
    stat = path.stat()
    return path, stat.st_size, stat.st_mtime_ns


def _skip(stream: Any, size: int) -> None:
    while size > 0 and (part := stream.read(min(size, _SKIP))):
        size -= len(part)


def _limited(stream: Any) -> Any:
    left = MAX_TEXT

    def read(size: int) -> bytes:
        nonlocal left
        data = stream.read1(size)  # what there is: a whole block would be lost with the damage behind its beginning
        left -= len(data)
        if left < 0:
            raise DumpError("it unpacks to more than 16 GiB")
        return data

    return read

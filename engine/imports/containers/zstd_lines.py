"""JSON lines inside zstd frames, with or without a seek table (prime-rl's sealed chunks).

Places are bytes of the text as it was before compression. With a seek table one frame is read to get a document;
without, the file is read from its beginning.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...runs.zstd import ZstdError, ZstdFile
from .base import DumpError, Found, loads
from .json_lines import lines

MAGIC = b"\x28\xb5\x2f\xfd"
SKIPPABLE = 0x184D2A5E
SEEKABLE = 0x8F92EAB1
MAX_TEXT = 16 << 30
"""Bytes of text in one file: what claims more is no dump but a bomb."""


class ZstdLines:
    """`.jsonl.zst` of any name."""

    name = "json lines in zstd"

    def detect(self, head: bytes) -> bool:
        """A zstd frame."""
        return head[:4] == MAGIC

    def open(self, path: Path, after: int = 0, line: int = 0) -> Iterator[Found]:
        """Lines behind a byte of the text."""
        try:
            with open(path, "rb") as file:
                skipped = _seek(file, path, after)
                stream = ZstdFile(file)
                while skipped > 0:
                    part = stream.read(min(skipped, 1 << 20))
                    if not part:
                        return
                    skipped -= len(part)
                yield from lines(_limited(stream), after, line)
        except (ZstdError, EOFError) as error:
            raise DumpError(f"{path}: the compressed text is damaged ({error})") from None

    def read(self, path: Path, offset: int, length: int) -> Any:
        """The line at a byte of the text."""
        try:
            with open(path, "rb") as file:
                skipped = _seek(file, path, offset)
                stream = ZstdFile(file)
                while skipped > 0:
                    part = stream.read(min(skipped, 1 << 20))
                    if not part:
                        break
                    skipped -= len(part)
                data = b""
                while len(data) < length and (part := stream.read(length - len(data))):
                    data += part
            return loads(data)
        except (ZstdError, EOFError, ValueError) as error:
            raise DumpError(f"{path}, byte {offset} of its text: {error}") from None

    def end(self, path: Path) -> int:
        """The size of the text where the file says it, else of the file."""
        table = _table(path, path.stat().st_size, path.stat().st_mtime_ns)
        return table[-1][1] if table else path.stat().st_size


def _limited(stream: Any) -> Any:
    left = MAX_TEXT

    def read(size: int) -> bytes:
        nonlocal left
        data = stream.read(size)
        left -= len(data)
        if left < 0:
            raise ZstdError("it unpacks to more than 16 GiB")
        return data

    return read


def _seek(file: Any, path: Path, offset: int) -> int:
    """Go to the frame that holds a byte of the text; how many bytes of it lie before that."""
    if offset == 0:
        return 0
    stat = path.stat()
    frame, text = 0, 0
    for at, end, start in _table(path, stat.st_size, stat.st_mtime_ns):
        if end > offset:
            frame, text = at, start
            break
    file.seek(frame)
    return offset - text


@lru_cache(maxsize=64)
def _table(path: Path, size: int, _changed: int) -> tuple[tuple[int, int, int], ...]:
    """The seek table at the end of a file: per frame its place, and where its text ends and begins; or nothing."""
    with open(path, "rb") as file:
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
        found, at, text = [], 0, 0
        for _ in range(frames):
            packed, plain = struct.unpack("<II", file.read(entry)[:8])
            found.append((at, text + plain, text))
            at, text = at + packed, text + plain
        return tuple(found)

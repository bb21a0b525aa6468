"""JSON lines inside zstd frames, with or without a seek table (prime-rl's sealed chunks).

Places are bytes of the text as it was before compression. With a seek table one frame is read to get a document;
without, the file is read from its beginning.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...runs.zstd import ZstdError, ZstdFile
from .packed_lines import PackedLines

MAGIC = b"\x28\xb5\x2f\xfd"
SKIPPABLE = 0x184D2A5E
SEEKABLE = 0x8F92EAB1


class ZstdLines(PackedLines):
    """`.jsonl.zst` of any name."""

    name = "json lines in zstd"
    damage = (ZstdError,)

    def detect(self, head: bytes) -> bool:
        """Return whether a file begins with a frame of zstd."""
        return head[:4] == MAGIC

    def unpacked(self, file: Any) -> Any:
        """Return a stream of the text."""
        return ZstdFile(file)

    def start_of(self, path: Path, offset: int) -> tuple[int, int]:
        """The frame that holds a byte of the text, by the seek table."""
        for at, end, start in _table(path, path.stat().st_size, path.stat().st_mtime_ns) if offset else ():
            if end > offset:
                return at, start
        return 0, 0

    def end(self, path: Path) -> int:
        """The bytes of the text, where a seek table tells them; else the size of the file."""
        stat = path.stat()
        table = _table(path, stat.st_size, stat.st_mtime_ns)
        return table[-1][1] if table else stat.st_size


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

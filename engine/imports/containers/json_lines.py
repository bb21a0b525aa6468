"""One JSON document per line. A damaged line is skipped and reported. A last line without its end is read later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import DumpError
from .base import MARK, MAX_DOCUMENT, TO_ITS_END, Container, Found, loads

BLOCK = 1 << 20


class JsonLines(Container):
    """`.jsonl` of any name."""

    name = "json lines"

    def detect(self, head: bytes) -> bool:
        start = head.removeprefix(MARK).lstrip()
        return start[:1] in (b"{", b"[") and b"\0" not in start[:64]

    def open(self, path: Path, after: int = 0, line: int = 0) -> Iterator[Found]:
        with open(path, "rb") as file:
            file.seek(after)
            yield from lines(file.read, after, line)

    def read(self, path: Path, offset: int, length: int) -> Any:
        with open(path, "rb") as file:
            file.seek(offset)
            data = file.readline(MAX_DOCUMENT) if length == TO_ITS_END else file.read(length)
        try:
            return loads(data)
        except ValueError as error:
            raise DumpError(f"{path}, byte {offset}: {error}; the file has changed since it was indexed") from None


def lines(read: Any, at: int, line: int, *, grows: bool = True) -> Iterator[Found]:
    """Yield the documents of a stream of lines. A last line that is not whole may still grow, or (not `grows`) is
    reported."""
    rest: list[bytes] = []
    held = 0
    skipping = False  # inside a line that is too long to read
    while block := read(BLOCK):
        pieces = block.split(b"\n")
        for i, piece in enumerate(pieces):
            last = i == len(pieces) - 1
            if last:
                if not skipping:
                    rest.append(piece)
                held += len(piece)
                if held > MAX_DOCUMENT and not skipping:
                    skipping = True
                    rest.clear()
                break
            line += 1
            length = held + len(piece)
            after = at + length + 1
            if skipping or length > MAX_DOCUMENT:
                yield Found(at, length, line, after, problem=_too_long(length))
            else:
                rest.append(piece)
                data = b"".join(rest) if len(rest) > 1 else piece
                yield from _one(data, at, line, after)
            rest.clear()
            held, skipping, at = 0, False, after
    data = b"".join(rest)
    if skipping and not grows:
        yield Found(at, held, line + 1, at + held, problem=_too_long(held))
    if held and not skipping and data.strip():
        try:
            document = loads(data)
        except ValueError as error:
            if not grows:
                yield Found(at, held, line + 1, at + held, problem=str(error))
            return
        if isinstance(document, (dict, list)):
            yield Found(at, held, line + 1, at + held, document)


def _too_long(length: int) -> str:
    return f"the line has {length / (1 << 20):.0f} MiB; up to {MAX_DOCUMENT >> 20} MiB are read"


def _one(data: bytes, at: int, line: int, after: int) -> Iterator[Found]:
    if not data or data.isspace():
        return
    try:
        yield Found(at, len(data), line, after, loads(data))
    except ValueError as error:
        yield Found(at, len(data), line, after, problem=str(error))

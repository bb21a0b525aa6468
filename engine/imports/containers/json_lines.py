"""One JSON document per line. A damaged line is skipped and reported. An incomplete last line is read later."""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path

from .base import MAX_DOCUMENT, Container, FoundDocument, begins_json, loads

BLOCK = 1 << 20


class JsonLines(Container):
    """`.jsonl` of any name."""

    name = "json lines"

    def detect(self, head: bytes) -> bool:
        return begins_json(head)

    def open(self, path: Path, after: int = 0, line: int = 0) -> Iterator[FoundDocument]:
        with open(path, "rb") as file:
            file.seek(after)
            yield from lines(file, after, line)


def lines(stream: BufferedIOBase, offset: int, line: int, *, grows: bool = True) -> Iterator[FoundDocument]:
    """Yield the documents of a stream of lines, from byte `offset`, which follows line number `line`.

    An incomplete last line is left for later if the stream `grows`, else it is reported.
    """
    while data := stream.readline(MAX_DOCUMENT + 1):
        ended = data.endswith(b"\n")
        length = len(data) - ended
        while not ended and length > MAX_DOCUMENT and (more := stream.readline(BLOCK)):
            ended = more.endswith(b"\n")
            length += len(more) - ended
        line += 1
        if not data.isspace():
            try:
                if length > MAX_DOCUMENT:
                    raise ValueError(f"the line has {length >> 20} MiB; up to {MAX_DOCUMENT >> 20} MiB are read")
                document, problem = loads(data), None
            except ValueError as error:
                document, problem = None, str(error)
            complete = ended or length > MAX_DOCUMENT
            if not complete and (grows if problem else not isinstance(document, (dict, list))):
                return
            yield FoundDocument(offset, length, line, offset + length + ended, document, problem)
        offset += length + ended

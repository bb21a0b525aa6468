"""One JSON document in a file: an object, or a list whose items are the documents (also when pretty-printed).

A large list is read item by item. Any other document is read at once.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import DumpError
from .base import MARK, MAX_DOCUMENT, Container, FoundDocument, cached_by_file, loads

MAX_FILE = 2 << 30
"""Bytes of a file that is read at once."""
LARGE = 16 << 20
"""Bytes of a list that is read item by item."""
_BLOCK = 1 << 20
_BLANK = re.compile(r"\s*")
_BEGIN = re.compile(r"(?:\xef\xbb\xbf)?\s*\[")
_BRACKETS = re.compile(rb'["{}\[\]]')
_IN_TEXT = re.compile(rb'["\\]')
_BETWEEN = re.compile(r"\s*,?\s*")


class JsonFile(Container):
    """`.json` of any name. Several lines that are each a document are JSON lines."""

    name = "json"

    def detect(self, head: bytes) -> bool:
        """Return whether an object or list does not end on its first line, or is the only line of the file."""
        start = head.removeprefix(MARK).lstrip()
        if start[:1] not in (b"{", b"[") or b"\0" in start[:64]:
            return False
        first, newline, rest = start.partition(b"\n")
        if newline and not rest.strip():
            newline = b""
        if not newline:
            # one line so far: a list is a file of items; an object may be the first line of a growing file
            return first[:1] == b"[" and first[1:].lstrip()[:1] == b"{"
        # a first line that is no document of its own: either pretty-printed, or a damaged line among good ones
        return _parsed(first) is None and not isinstance(_parsed(rest.partition(b"\n")[0]), dict)

    def open(self, path: Path, after: int = 0, line: int = 0) -> Iterator[FoundDocument]:
        """Yield the document or the items of the list. The place is an index, or the bytes in a large list."""
        if os.stat(path).st_size > LARGE and _is_list(path):
            yield from _items(path, after, line)
            return
        items = _load(path)
        for i, item in enumerate(items[after:], after):
            yield FoundDocument(i, 1, i + 1, i + 1, item)

    def read(self, path: Path, offset: int, length: int) -> Any:
        """Return an item by its index (`length` 1) or its bytes."""
        if length > 1:
            with open(path, "rb") as file:
                file.seek(offset)
                data = file.read(length)
            try:
                return loads(data)
            except ValueError as error:
                raise DumpError(f"{path}, byte {offset}: {error}; the file has changed since it was indexed") from None
        return item_of(_load(path), path, offset)


def is_long_line(stream: Any) -> bool:
    """Return whether a text is one line, which is too long for JSON lines."""
    length = 0
    while part := stream.readline(_BLOCK):
        length += len(part)
        if part.endswith(b"\n"):
            break
    return length > MAX_DOCUMENT and not stream.read(_BLOCK).strip()


def _is_list(path: Path) -> bool:
    with open(path, "rb") as file:
        return _BEGIN.match(file.read(64).decode("latin-1")) is not None


def _items(path: Path, after: int, line: int) -> Iterator[FoundDocument]:
    """Yield the items of a list from a byte on.

    The end of an item is found in Latin-1 text, which has one character per byte. The item is read from its bytes.
    """
    decoder = json.JSONDecoder(parse_int=str)  # an `int` may have too many digits
    with open(path, "rb") as file:
        file.seek(after)
        base, text = after, file.read(_BLOCK).decode("latin-1")
        begin = _BEGIN.match(text) if after == 0 else None
        at = begin.end() if begin is not None else 0
        while True:
            at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr] - it matches nothing, too
            problem, end = None, at
            try:
                end = decoder.raw_decode(text, at)[1]
            except RecursionError:
                problem = "it is nested too deeply"
            except json.JSONDecodeError as error:
                if text[at : at + 1] == "]":
                    return
                problem = f"it is no JSON ({error.msg})"
                # an item that is cut off fails at its end, or at the beginning of a text without an end
                torn = error.msg.startswith("Unterminated") or error.pos >= len(text) - 16
                if len(text) - at > MAX_DOCUMENT:
                    problem = f"the item has more than {MAX_DOCUMENT >> 20} MiB"
                elif torn and (more := file.read(max(_BLOCK, len(text) - at))):
                    base, text, at = base + at, text[at:] + more.decode("latin-1"), 0
                    continue
            if problem is not None:
                begin = base + at
                behind = _behind(path, begin)
                if behind is None:
                    if text[at:].strip():
                        problem += "; the list is not read from here on"
                        yield FoundDocument(begin, 0, line + 1, os.stat(path).st_size, problem=problem)
                    return
                line += 1
                yield FoundDocument(begin, behind - begin, line, behind, problem=problem)
                file.seek(behind)
                base, text, at = behind, file.read(_BLOCK).decode("latin-1"), 0
                continue
            line += 1
            try:
                document = loads(text[at:end].encode("latin-1"))
            except ValueError as error:
                yield FoundDocument(base + at, end - at, line, base + end, problem=str(error))
            else:
                yield FoundDocument(base + at, end - at, line, base + end, document)
            at = end


def _behind(path: Path, begin: int) -> int | None:
    """Return the end of an object or list that is too large or damaged, found by its brackets, or None."""
    depth, inside, at = 0, False, begin
    with open(path, "rb") as file:
        file.seek(begin)
        while block := file.read(_BLOCK):
            i = 0
            while (found := (_IN_TEXT if inside else _BRACKETS).search(block, i)) is not None:
                i, mark = found.end(), found[0]
                if mark == b"\\":
                    if i == len(block):  # the escaped character is in the next block
                        block += file.read(1)
                    i += 1
                elif mark == b'"':
                    inside = not inside
                else:
                    depth += 1 if mark in b"{[" else -1
                    if depth <= 0:
                        return at + i if depth == 0 else None
            if depth == 0:
                return None  # it begins with no bracket
            at += len(block)
    return None


@cached_by_file(maxsize=2)
def _load(path: Path) -> tuple[object, ...]:
    size = os.stat(path).st_size
    if size > MAX_FILE:
        raise DumpError(f"{path}: one JSON document of {size >> 20} MiB cannot be read at once; write JSON lines")
    try:
        return items_of(path.read_bytes())
    except ValueError as error:
        raise DumpError(f"{path}: {error}") from None


def item_of(items: Sequence[Any], path: Path, offset: int) -> Any:
    """Return an item of a list by its index. Raises DumpError if the list has fewer."""
    if offset >= len(items):
        raise DumpError(f"{path} has changed since it was indexed: it has no item {offset} any more")
    return items[offset]


def items_of(data: bytes) -> tuple[Any, ...]:
    """Return the items of a list, or the documents that follow each other. Raises ValueError if it is no JSON."""
    try:
        document = loads(data)
    except ValueError:
        found = _one_after_the_other(data)
        if not found:
            raise
        return found
    return tuple(document) if isinstance(document, list) else (document,)


def _one_after_the_other(data: bytes) -> tuple[object, ...]:
    """Return several pretty-printed documents (as `jq` writes them), or nothing if there is other text between them."""
    decoder = json.JSONDecoder()
    text = data.removeprefix(MARK).decode("utf-8", "replace")
    found: list[object] = []
    at = 0
    try:
        while (at := _BLANK.match(text, at).end()) < len(text):  # type: ignore[union-attr] - it matches nothing, too
            begin, (_, at) = at, decoder.raw_decode(text, at)
            found.append(loads(text[begin:at].encode()))
    except (ValueError, RecursionError):
        return tuple(found) if len(found) > 1 else ()  # the last one may still be written
    return tuple(found)


def _parsed(line: bytes) -> Any:
    try:
        return loads(line)
    except ValueError:
        return None

"""One JSON document in a file: an object, or a list whose items are the documents (also when pretty-printed)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from .base import MARK, DumpError, Found, loads

MAX_FILE = 2 << 30
"""Bytes of a file that is read at once."""
_BLANK = re.compile(r"\s*")


class JsonFile:
    """`.json` of any name. Several lines that are each a document are JSON lines."""

    name = "json"

    def detect(self, head: bytes) -> bool:
        """An object or list that does not end on its first line, or is the only line of the file."""
        start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
        if start[:1] not in (b"{", b"[") or b"\0" in start[:64]:
            return False
        first, newline, rest = start.partition(b"\n")
        if newline and not rest.strip():
            newline = b""
        if not newline:
            # one line so far: a list is a file of items; an object may be the first line of a growing file
            return first[:1] == b"[" and first[1:].lstrip()[:1] == b"{"
        try:
            loads(first)
        except ValueError:
            # the first line is no document of its own: either pretty-printed, or a damaged line among good ones
            return not _a_document(rest.partition(b"\n")[0])
        return False

    def open(self, path: Path, after: int = 0, line: int = 0) -> Iterator[Found]:
        """The document, or the items of the list, each with its index as the place."""
        items = _load(path, os.stat(path).st_size, os.stat(path).st_mtime_ns)
        for i, item in enumerate(items[after:], after):
            yield Found(i, 1, i + 1, i + 1, item)

    def read(self, path: Path, offset: int, length: int) -> Any:
        """An item by its index."""
        items = _load(path, os.stat(path).st_size, os.stat(path).st_mtime_ns)
        if offset >= len(items):
            raise DumpError(f"{path} has changed since it was indexed: it has no item {offset} any more")
        return items[offset]

    def end(self, path: Path) -> int:
        """Its size: such a file does not grow but is written anew."""
        return os.stat(path).st_size


@lru_cache(maxsize=2)
def _load(path: Path, size: int, _changed: int) -> tuple[Any, ...]:
    if size > MAX_FILE:
        raise DumpError(f"{path}: one JSON document of {size >> 20} MiB cannot be read at once; write JSON lines")
    try:
        return items_of(path.read_bytes())
    except ValueError as error:
        raise DumpError(f"{path}: {error}") from None


def items_of(data: bytes) -> tuple[Any, ...]:
    """The items of a list, or the documents that stand one after the other. Raises ValueError for what is no JSON."""
    try:
        document = loads(data)
    except ValueError:
        found = _one_after_the_other(data)
        if not found:
            raise
        return found
    return tuple(document) if isinstance(document, list) else (document,)


def _one_after_the_other(data: bytes) -> tuple[Any, ...]:
    """Several pretty-printed documents (as `jq` writes them); nothing where there is anything else between them."""
    decoder = json.JSONDecoder()
    text = data.removeprefix(MARK).decode("utf-8", "replace")
    found: list[Any] = []
    at = 0
    try:
        while (at := _BLANK.match(text, at).end()) < len(text):  # type: ignore[union-attr] - it matches nothing, too
            document, at = decoder.raw_decode(text, at)
            found.append(document)
    except (ValueError, RecursionError):
        return tuple(found) if len(found) > 1 else ()  # the last one may still be written
    return tuple(found)


def _a_document(line: bytes) -> bool:
    try:
        return isinstance(loads(line), dict)
    except ValueError:
        return False

"""The interface of a container, and the documents that it yields."""

from __future__ import annotations

import functools
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson

from ...runs.labels import clean
from ..errors import DumpError

HEAD = 1 << 16
"""The number of leading bytes that container detection reads."""
MAX_DOCUMENT = 64 << 20
"""Maximum bytes of one document. A longer one is skipped and reported."""
TO_ITS_END = -1
"""The length of a line whose end is unknown."""
MARK = b"\xef\xbb\xbf"
"""The UTF-8 byte order mark, which Windows editors write."""
_JSON = re.compile(rb"\s*(?:\{(?!\s*[%{#])|\[\s*(?:[\[{\"'\]]|\Z))")
"""The beginning of an object, or of a list of objects, lists or texts. It rejects templates (`{%`) and logs
(`[2026-…]`)."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class FoundDocument:
    """One document and its location. The container uses `offset` and `length` to read it again. `line` is for people.
    `after` is the offset of the next document. `problem` is the reason why the document is skipped."""

    offset: int
    length: int
    line: int
    after: int
    document: Any = None
    problem: str | None = None


class Container(ABC):
    """A file layout that holds documents."""

    name: str

    @abstractmethod
    def detect(self, head: bytes) -> bool:
        """Return whether a file that begins with these bytes is in this container."""

    @abstractmethod
    def open(self, path: Path, after: int = 0, line: int = 0) -> Iterator[FoundDocument]:
        """Yield the documents from offset `after` on, in order. Raises DumpError or OSError."""

    def read(self, path: Path, offset: int, length: int) -> Any:
        """Return the document at an offset. Raises DumpError or OSError."""
        found = next(iter(self.open(path, offset)), None)
        if found is None or found.problem is not None:
            raise DumpError(f"{path} has changed since it was indexed")
        return found.document

    def end(self, path: Path) -> int:
        """Return the largest value that `after` can have now, by default the file size. Raises OSError."""
        return os.stat(path).st_size


def begins_json(head: bytes) -> bool:
    """Return whether a text that begins like this may be JSON with rollouts."""
    start = head.removeprefix(MARK)
    return _JSON.match(start) is not None and b"\0" not in start[:64].partition(b"\n")[0]


def stat_of(path: str | Path) -> tuple[int, int]:
    """Return the size in bytes and the modification time in nanoseconds. Raises OSError."""
    stat = os.stat(path)
    return stat.st_size, stat.st_mtime_ns


def cached_by_file(maxsize: int) -> Callable[[Callable[..., _T]], Callable[..., _T]]:
    """Cache a function of a path and other arguments until the file changes."""

    def decorate(function: Callable[..., _T]) -> Callable[..., _T]:
        @functools.lru_cache(maxsize=maxsize)
        def cached(_state: tuple[int, int], path: Path, *rest: object) -> _T:
            return function(path, *rest)

        @functools.wraps(function)
        def current(path: Path, *rest: object) -> _T:
            return cached(stat_of(path), path, *rest)

        return current

    return decorate


def loads(data: bytes) -> Any:
    """Parse JSON, allowing NaN and infinity. Lone surrogates become U+FFFD. Raises ValueError, also if too deep."""
    data = data.removeprefix(MARK)
    try:
        document = orjson.loads(data)
        return _by_json(data) if type(document) is dict and _has_huge(document) else document
    except orjson.JSONDecodeError as error:
        # Only orjson refuses NaN, lone surrogates, and numbers that are too large.
        known = b"NaN" in data or b"Infinity" in data or b"\\ud" in data.lower()
        if not known and not str(error).startswith("number"):
            raise ValueError(_short(error)) from None
        return _by_json(data)


def _has_huge(document: dict[str, object]) -> bool:
    """Return whether a value is an integer of more than 64 bits. orjson rounds it, so ids would lose digits."""
    return any(type(v) is float and (v >= 2.0**63 or v <= -(2.0**63)) for v in document.values())


def _by_json(data: bytes) -> object:
    try:
        document = json.loads(data)
        halves = b"\\ud" in data.lower()
        return json.loads(clean(json.dumps(document, ensure_ascii=False))) if halves else document
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(_short(error)) from None


def _short(error: Exception) -> str:
    return f"it is not JSON ({str(error)[:120]})"

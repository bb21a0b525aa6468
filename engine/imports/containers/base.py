"""What a container is, and what is read from one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson

HEAD = 1 << 16
"""Bytes of a file by which its container is recognised."""
MAX_DOCUMENT = 64 << 20
"""Bytes of one document; a longer one is skipped, with its place."""


@dataclass(frozen=True)
class Found:
    """One document and its place: `offset` and `length` mean to its container what they need to mean to read it
    again; `line` is what a person calls the place; `after`: where the next one begins. `problem`: it was skipped."""

    offset: int
    length: int
    line: int
    after: int
    document: Any = None
    problem: str | None = None


class Container(Protocol):
    """How a file holds documents."""

    name: str

    def detect(self, head: bytes) -> bool:
        """Whether a file that begins with these bytes is one."""
        ...

    def open(self, path: Path, after: int = 0, line: int = 0) -> Iterator[Found]:
        """The documents behind a place, in order. Raises DumpError or OSError."""
        ...

    def read(self, path: Path, offset: int, length: int) -> Any:
        """The document at a place. Raises DumpError or OSError."""
        ...

    def end(self, path: Path) -> int:
        """How far `after` can go now: for progress, and to see that a file has grown. Raises OSError."""
        ...


TO_ITS_END = -1
"""The length of a line of which only the beginning is known."""
MARK = b"\xef\xbb\xbf"
"""The mark that editors of Windows put before UTF-8."""


def loads(data: bytes) -> Any:
    """JSON, NaN and infinity allowed. Raises ValueError, also for what is nested too deeply."""
    if data[:3] == MARK:
        data = data[3:]
    try:
        document = orjson.loads(data)
        return _exact(data) if type(document) is dict and _has_huge(document) else document
    except orjson.JSONDecodeError as error:
        # orjson knows no NaN, and no number that is too large; anything else that it refuses is refused
        known = b"NaN" in data or b"Infinity" in data or b"\\ud" in data or b"\\uD" in data
        if not known and not str(error).startswith("number"):
            raise ValueError(_told(error)) from None
        try:
            return json.loads(data)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        except ValueError as other:
            raise ValueError(_told(other)) from None


def _has_huge(document: dict[str, Any]) -> bool:
    """Whether a value is a whole number of more than 64 bits: orjson makes a float of it, so ids would lose digits."""
    return any(type(v) is float and (v >= 2.0**63 or v <= -(2.0**63)) for v in document.values())


def _exact(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _told(error: Exception) -> str:
    """The reader's complaint without the text that it read."""
    return f"it is no JSON ({str(error)[:120]})"

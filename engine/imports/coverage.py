"""How much of a dump its index holds, why indexing stopped, and whether a search needs the texts.

Rows come first, and texts become searchable later, because text search costs many times as much time and space. Of a
large dump only the first texts are indexed unless somebody searches (`ask_for_text`).
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import DumpError

UNASKED_TEXT = 256 << 20
"""Bytes of rollouts that become searchable without a search."""
SOURCES = "SELECT position, ends, done, size FROM sources"
"""The query for `Coverage.of`."""
_ASKED = "search.asked"
_STOPPED = ".ended"
_REASON_BYTES = 200


@dataclass(frozen=True)
class Coverage:
    """`done` of `size` bytes of the files are in the index, and the texts of `searchable` of `rollouts`."""

    done: int
    size: int
    searchable: int
    rollouts: int

    @classmethod
    def of(cls, sources: Iterable[tuple[int, int, int, int]], searchable: int, rollouts: int) -> Coverage:
        done = size = 0
        for position, ends, finished, known in sources:
            size += known
            share = 1.0 if finished else min(1.0, position / ends) if ends > 0 else 0.0
            done += int(known * share)
        return cls(done, size, searchable, rollouts)

    @property
    def share(self) -> float:
        return 1.0 if self.size <= 0 else min(1.0, self.done / self.size)


def ask_for_text(folder: Path) -> None:
    """Request the texts of all rollouts."""
    with contextlib.suppress(OSError):  # a cache that cannot be written has no index to continue
        (folder / _ASKED).touch()


def text_is_asked_for(folder: Path) -> bool:
    """Return whether somebody has searched this dump."""
    return (folder / _ASKED).exists()


@contextlib.contextmanager
def reason_kept(folder: Path) -> Iterator[None]:
    """Keep the error that ends indexing. The file gets its space before, because a full disk has none later."""
    with open(folder / _STOPPED, "wb", buffering=0) as file:
        file.write(b" " * _REASON_BYTES)
        try:
            yield
        except (DumpError, OSError, sqlite3.Error) as error:
            why = getattr(error, "strerror", None) or str(error)
            with contextlib.suppress(OSError):
                file.seek(0)
                file.write(why.encode()[:_REASON_BYTES])
            raise


def reason_stopped(folder: Path) -> str:
    """Return the sentence of the error that ended indexing, or nothing."""
    try:
        return (folder / _STOPPED).read_bytes().decode(errors="ignore").strip()
    except OSError:
        return ""

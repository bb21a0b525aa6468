"""How much of a dump its index holds, why indexing stopped, and whether a search needs the texts.

Rows come first and texts later, because a text index costs many times as much time and space. A large dump gets only
its first texts indexed until somebody searches (`ask_for_text`).
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from .errors import DumpError, reason_of

UNASKED_TEXT = 256 << 20
"""Bytes of rollouts whose texts are indexed before anybody searches."""
SHARE_INDEXED = (
    "SELECT coalesce(sum(size * CASE WHEN done THEN 1.0 WHEN ends > 0 THEN min(1.0, position * 1.0 / ends) ELSE 0 END) "
    "/ sum(size), 1.0) FROM sources"
)
"""The query for the share of the files' bytes that is indexed."""
NO_FORMAT = "no known format"
"""The reason for skipping a document that may not be a rollout at all."""
ASKED = "search.asked"
_STOPPED = ".ended"
_REASON_BYTES = 200


def ask_for_text(folder: Path) -> None:
    """Request the texts of all rollouts."""
    with contextlib.suppress(OSError):  # a cache that cannot be written has no index to continue
        (folder / ASKED).touch()


@contextlib.contextmanager
def reason_kept(folder: Path) -> Iterator[None]:
    """Store the error that ends indexing. Reserve the file's space first, because a full disk has none later."""
    with open(folder / _STOPPED, "wb", buffering=0) as file:
        file.write(b" " * _REASON_BYTES)
        try:
            yield
        except (DumpError, OSError, sqlite3.Error) as error:
            why = reason_of(error)
            with contextlib.suppress(OSError):
                file.seek(0)
                file.write(why.encode()[:_REASON_BYTES])
            raise


def reason_stopped(folder: Path) -> str:
    """Return the message of the error that ended indexing, or an empty string."""
    try:
        return (folder / _STOPPED).read_bytes().decode(errors="ignore").strip()
    except OSError:
        return ""

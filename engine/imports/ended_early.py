"""Why indexing ended before it was done, for the app that shows what there is of the index."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from .errors import DumpError

_BYTES = 200


@contextlib.contextmanager
def told(folder: Path) -> Iterator[None]:
    """Write down the error that ends indexing. The file takes its space beforehand: a full disk has none later."""
    with open(folder / ".ended", "wb", buffering=0) as file:
        file.write(b" " * _BYTES)
        try:
            yield
        except (DumpError, OSError, sqlite3.Error) as error:
            why = getattr(error, "strerror", None) or str(error)
            with contextlib.suppress(OSError):
                file.seek(0)
                file.write(why.encode()[:_BYTES])
            raise


def why(folder: Path) -> str:
    """One sentence, or nothing: the index is done, or is being made."""
    try:
        return (folder / ".ended").read_bytes().decode(errors="ignore").strip()
    except OSError:
        return ""

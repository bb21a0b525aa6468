"""Why indexing ended before it was done, for the app that shows what there is of the index."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from .errors import DumpError

_BYTES = 200


@contextlib.contextmanager
def told(folder: Path) -> Iterator[None]:
    """What ends indexing inside is written down. Its place is taken before, because a full disk has none then."""
    descriptor = os.open(folder / ".ended", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(descriptor, b" " * _BYTES, 0)
        yield
    except (DumpError, OSError, sqlite3.Error) as error:
        why = getattr(error, "strerror", None) or str(error)
        with contextlib.suppress(OSError):
            os.pwrite(descriptor, why.encode()[:_BYTES], 0)
        raise
    finally:
        os.close(descriptor)


def why(folder: Path) -> str:
    """One sentence, or nothing: the index is done, or is being made."""
    try:
        return (folder / ".ended").read_bytes().decode(errors="ignore").strip()
    except OSError:
        return ""

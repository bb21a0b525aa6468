"""How far another journal is copied into a record, kept in the transaction that stored the copy."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from .errors import RecordDamaged
from .paths import DATABASE
from .schema import connect_reader

JOURNAL_POSITION = "journal"
"""Rows of the update worker's journal."""
REQUEST_POSITION = "request"
ROW_POSITION = "row"
"""Requests that were answered, and rows of their source that were taken."""


def meta_key(name: str) -> str:
    """Return the key of a position in the table `meta`."""
    return f"position/{name}"


def recorded_position(run_dir: Path, name: str) -> int | None:
    """Return the last position that was stored; None if there is none, or it cannot be read."""
    path = run_dir / DATABASE
    if not path.exists():
        return None
    try:
        db = connect_reader(path)
    except RecordDamaged:
        return None
    try:
        row = db.execute("SELECT value FROM meta WHERE key = ?", (meta_key(name),)).fetchone()
        return None if row is None else int(row[0])
    except (sqlite3.Error, ValueError):
        return None
    finally:
        db.close()

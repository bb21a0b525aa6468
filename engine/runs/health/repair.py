"""Save the readable part of a damaged record into a new one.

Each intact trajectory is recorded again from its own text, so every index, list and search of the new record matches
its content. The damaged file is kept under another name.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import codec
from ..control.status import process_names
from ..durable import read_json, write_json
from ..errors import RecordDamaged
from ..paths import DATABASE, PROCESSES
from ..read.reader import RunReader
from ..read.record import committed
from ..schema import connect_reader
from ..types import TrajectoryRecord
from ..write.store import RecordStore

HEAD = 100
"""The size of a SQLite file header in bytes."""
PROBE = 4096
"""The number of unreadable row numbers in a row after which a table counts as ended."""


@dataclass(frozen=True)
class Repaired:
    """The result of a repair. `expected`: the number of trajectories known to be committed. `kept`: the old file (None:
    there was none)."""

    saved: int
    expected: int
    metrics: int
    events: int
    kept: Path | None


def repair(run_dir: Path) -> Repaired:
    """Replace a record with a new one that holds everything readable.

    A missing record becomes an empty one. No process may write to the record during the repair. Raises OSError, and
    RecordDamaged if the file is not a database at all.
    """
    path = run_dir / DATABASE
    target = run_dir / f".{DATABASE}.repaired"
    kept = run_dir / f"damaged-{time.strftime('%Y%m%d-%H%M%S')}-{DATABASE}"
    _remove(target)
    if not path.is_file():
        expected = committed(run_dir)
        _move(path, kept)
        RecordStore(path).close()
        _correct_counts(run_dir, 0)
        return Repaired(0, expected, 0, 0, None)
    path.open("rb").close()  # another user's record is not damaged
    headless = False
    try:
        connect_reader(path).close()
    except RecordDamaged:
        headless = True
        _move(path, kept)
        _put_head_back(kept, path)
    try:
        return _repaired(run_dir, path, target, None if headless else kept, kept)
    except BaseException:
        if headless:
            _remove(path)
            _move(kept, path)
        raise


def _repaired(run_dir: Path, path: Path, target: Path, move_to: Path | None, kept: Path) -> Repaired:
    try:
        with (
            closing(connect_reader(path)) as source,
            closing(RecordStore(target)) as store,
            RunReader(run_dir) as reader,
            store.transaction(),
        ):
            saved, last = _trajectories(source, reader, store)
            metrics = _metrics(source, store)
            events = 0
            for kind, when, step, message, data in _rows(source, "events", "kind, time, step, message, data"):
                store.add_event(kind, message, step, when, str(data).encode())
                events += 1
            _plain_tables(source, store)
    except BaseException:
        _remove(target)
        raise
    expected = max(committed(run_dir), last, saved)
    if move_to is not None:
        _move(path, move_to)
    _remove(path)
    os.replace(target, path)
    _remove(target)
    _correct_counts(run_dir, saved)
    return Repaired(saved, expected, metrics, events, kept)


def _correct_counts(run_dir: Path, saved: int) -> None:
    """Update the number of trajectories in the status files, so that the loss is not reported again."""
    for name in process_names(run_dir):
        state = read_json(run_dir / PROCESSES / f"{name}.json")
        if "trajectories" in state:
            write_json(run_dir / PROCESSES / f"{name}.json", {**state, "trajectories": saved})


def _put_head_back(damaged: Path, path: Path) -> None:
    """Copy a record with a damaged header, using the header of a new record, which differs only in counters.

    The file format: https://www.sqlite.org/fileformat.html#the_database_header
    """
    RecordStore(path).close()
    head = bytearray(path.read_bytes()[:HEAD])
    _remove(path)
    page = int.from_bytes(head[16:18], "big")
    head[28:32] = (damaged.stat().st_size // page).to_bytes(4, "big")
    head[32:40] = bytes(8)  # no list of free pages
    with damaged.open("rb") as source, path.open("wb") as target:
        target.write(head)
        source.seek(HEAD)
        shutil.copyfileobj(source, target)
    with suppress(FileNotFoundError):
        shutil.copyfile(f"{damaged}-wal", f"{path}-wal")


def _move(path: Path, to: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.replace(f"{path}{suffix}", f"{to}{suffix}")


def _trajectories(source: sqlite3.Connection, reader: RunReader, store: RecordStore) -> tuple[int, int]:
    """Copy trajectories. Return how many were saved, and the last number that left any trace."""
    saved = last = step = 0
    for first, body, tokens in _rows(source, "chunks", "first_n, body, tokens"):
        try:
            lines = codec.decompress(body).split(b"\n")
        except ValueError:
            continue
        arrays = None
        if tokens is not None:
            with suppress(ValueError):
                arrays = codec.decompress(tokens)
        for i, line in enumerate(lines):
            n = last = first + i
            with suppress(sqlite3.Error):
                found = source.execute("SELECT step FROM rows WHERE n = ?", (n,)).fetchone()
                step = step if found is None else found[0]
            record = _record(reader, n, line, arrays, i)
            if record is not None and not store.add_trajectories(step, [record]):
                with suppress(LookupError, RecordDamaged):
                    first_use = record.use
                    store.rows.add_uses(
                        [(record.trajectory.id, use) for use in reader.bodies.uses(n) if use != first_use]
                    )
                saved += 1
    with suppress(sqlite3.Error):
        last = max(last, source.execute("SELECT coalesce(max(n), 0) FROM rows").fetchone()[0])
    return saved, last


def _record(reader: RunReader, n: int, line: bytes, arrays: bytes | None, index: int) -> TrajectoryRecord | None:
    try:
        tools = reader.bodies.tools(n)
    except (RecordDamaged, ValueError, TypeError, KeyError):
        tools = ()
    try:
        record = codec.decode_body(line, tools)
    except (IndexError, KeyError, TypeError, ValueError, AttributeError):
        return None
    tokens = None
    if arrays is not None:
        with suppress(IndexError, KeyError, TypeError, ValueError):
            tokens = codec.decode_tokens(arrays, index)
    return replace(record, tokens=tokens)


def _metrics(source: sqlite3.Connection, store: RecordStore) -> int:
    names = dict(_rows(source, "metric_names", "id, name"))
    count = 0
    for name, step, value in _rows(source, "metrics", "name, step, value"):
        if name in names and isinstance(step, int):
            store.metrics.add(step, {names[name]: value})
            count += 1
    return count


def _plain_tables(source: sqlite3.Connection, store: RecordStore) -> None:
    texts = dict(_rows(source, "vocabulary", "id, text"))
    if texts and len(texts) == max(texts) + 1:  # a gap would shift every later token
        store.add_vocabulary(texts[i] for i in range(len(texts)))
    with suppress(sqlite3.Error):
        for key, value in source.execute("SELECT key, value FROM meta").fetchall():
            store.set_meta(key, value)
    with suppress(sqlite3.Error):
        for step, when in source.execute("SELECT step, time FROM steps").fetchall():
            store.db.execute("UPDATE steps SET time = ? WHERE step = ?", (when, step))
    with suppress(sqlite3.Error):  # an older record lacks it
        for step, spans in source.execute("SELECT step, data FROM timeline").fetchall():
            store.add_timeline(step, str(spans).encode())


def _rows(db: sqlite3.Connection, table: str, columns: str) -> Iterator[tuple[Any, ...]]:
    """Yield every readable row of a table in order. Around damage, read row by row."""
    last = 0
    while True:
        try:
            for row in db.execute(f"SELECT rowid, {columns} FROM {table} WHERE rowid > ? ORDER BY rowid", (last,)):
                last = row[0]
                yield row[1:]
            return
        except sqlite3.DatabaseError:
            following = _next(db, table, columns, last)
            if following is None:
                return
            last = following[0]
            yield following[1:]


def _next(db: sqlite3.Connection, table: str, columns: str, last: int) -> tuple[Any, ...] | None:
    """Return the next row after damage by looking up row numbers."""
    for number in range(last + 1, last + PROBE):
        with suppress(sqlite3.DatabaseError):
            row = db.execute(f"SELECT rowid, {columns} FROM {table} WHERE rowid = ?", (number,)).fetchone()
            if row is not None:
                return row
    return None


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)

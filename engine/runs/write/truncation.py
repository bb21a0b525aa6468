"""Remove the records after a step, before a resumed run records them again."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import replace

from .. import codec
from ..errors import RecordDamaged
from ..learning import LATER_BITS, LATER_KINDS, OWN_BITS, Use
from ..read.reader import RunReader
from ..schema import TIMELINE
from ..types import TrajectoryRecord
from .store import RecordStore


def truncate_after(store: RecordStore, step: int) -> int:
    """Remove everything recorded after a step, in one transaction. Return the number of removed trajectories.

    Trajectories of earlier steps that were recorded later, for example by a late evaluation, are appended again so that
    numbers stay dense.
    """
    db = store.db
    with store.transaction():
        cut = db.execute("SELECT min(n) FROM rows WHERE step > ?", (step,)).fetchone()[0]
        removed = 0
        _forget_uses_after(store, step)
        if cut is not None:
            late = db.execute("SELECT n, step FROM rows WHERE n >= ? AND step <= ?", (cut, step)).fetchall()
            removed = store.last_n() - cut + 1 - len(late)
            with RunReader(store.path.parent) as reader:  # it sees the record before this transaction
                kept = [(s, record) for n, s in late if (record := _read(reader, n, step)) is not None]
                _remove_from(store, cut, reader)
            for kept_step, (record, uses) in kept:
                store.add_trajectories(kept_step, [record])
                store.rows.add_uses([(record.trajectory.id, use) for use in uses])
            if lost := len(late) - len(kept):
                message = f"{lost} earlier trajectories could not be read when the run was resumed, and are missing"
                store.add_event("record", message, step, time.time(), b"{}")
        store.metrics.remove_after(step)
        db.execute("DELETE FROM events WHERE step > ? AND kind NOT IN ('record', 'error', 'control')", (step,))
        db.execute("DELETE FROM steps WHERE step > ?", (step,))
        db.execute(TIMELINE)  # an older record lacks it
        db.execute("DELETE FROM timeline WHERE step > ?", (step,))
        # Readers that have seen the removed rows start over when the epoch changes.
        store.set_meta("epoch", str(time.time_ns()))
    return removed


def _forget_uses_after(store: RecordStore, step: int) -> None:
    store.db.execute(
        "UPDATE rows SET uses = (coalesce(uses, 0) & ?) | coalesce((SELECT sum(DISTINCT bit.value) FROM uses "
        "JOIN json_each(?) AS bit ON uses.mask & bit.value WHERE uses.n = rows.n AND uses.step <= ?), 0) "
        "WHERE n IN (SELECT n FROM uses WHERE step > ?)",
        (OWN_BITS, json.dumps(LATER_BITS), step, step),
    )
    store.db.execute("DELETE FROM uses WHERE step > ?", (step,))


def _remove_from(store: RecordStore, cut: int, reader: RunReader) -> None:
    db = store.db
    removed = _texts(store, "n >= ?", cut, reader)
    if all(text is not None for _, text in removed):
        for n, text in removed:
            store.rows.remove_search(n, text or ())
    else:  # the index entries of a damaged text are unknown
        db.execute("INSERT INTO search (search) VALUES ('delete-all')")
        store.rows.add_search((n, text) for n, text in _texts(store, "n < ?", cut, reader) if text is not None)
    head = db.execute(
        "SELECT first_n, body, tokens FROM chunks WHERE first_n < ? AND first_n + count > ?", (cut, cut)
    ).fetchone()
    for table in ("rows", "cards", "overflow", "uses", "extras"):
        db.execute(f"DELETE FROM {table} WHERE n >= ?", (cut,))
    db.execute("DELETE FROM chunks WHERE first_n >= ?", (cut,))
    for table, column in (("groups", "grp"), ("prompts", "prompt")):  # pages of groups need ids without gaps
        db.execute(f"DELETE FROM {table} WHERE id > (SELECT coalesce(max({column}), 0) FROM rows)")
    store.rows.forget()
    store.rows.labels.refresh()
    if head is not None:  # a blob that begins before the cut: keep its first lines
        first, body, tokens = head
        with suppress(ValueError):  # a damaged blob stays: readers take the later one for numbers from the cut on
            lines = codec.decompress(body).split(b"\n")[: cut - first]
            arrays = None
            if tokens is not None:
                raw = codec.decompress(tokens)
                arrays = codec.encode_tokens([codec.decode_tokens(raw, i) for i in range(len(lines))])
            db.execute("DELETE FROM chunks WHERE first_n = ?", (first,))
            store.put_chunk(first, lines, arrays)


def _texts(store: RecordStore, where: str, cut: int, reader: RunReader) -> list[tuple[int, tuple[str, ...] | None]]:
    """Return the texts in the index by number, None for a damaged one."""
    rows = store.db.execute(f"SELECT n FROM rows WHERE {where}", (cut,)).fetchall()
    found = ((n, _read(reader, n)) for (n,) in rows)
    return [(n, None if read is None else codec.search_text(read[0])) for n, read in found]


def _read(reader: RunReader, n: int, step: int = 0) -> tuple[TrajectoryRecord, list[Use]] | None:
    """Return a trajectory and the later updates up to `step` that used it. Leave out damaged tokens. Return None if the
    text is damaged."""
    try:
        record = reader.bodies.trajectory(n)
    except (RecordDamaged, LookupError):
        return None
    with suppress(RecordDamaged):
        record = replace(record, tokens=reader.bodies.tokens(n))
    uses = reader.bodies.uses(n, record)
    return record, [use for use in uses if use.kind in LATER_KINDS and use.step <= step]

"""Remove the records after a step, before a resumed run records them again."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import replace

from ....envs.tools import ToolSpec
from .. import codec
from ..learning import LATER_BITS, OWN_BITS, USE_COLUMNS, Use, use_of
from ..schema import TIMELINE
from ..types import TrajectoryRecord
from .store import RecordStore


def truncate_after(store: RecordStore, step: int) -> int:
    """Remove everything that was recorded after a step, in one transaction. Returns how many trajectories went.

    Trajectories of an earlier step that were recorded later, such as those of a late evaluation, are appended again, so
    that numbers stay dense.
    """
    db = store.db
    store.begin()
    try:
        cut = db.execute("SELECT min(n) FROM rows WHERE step > ?", (step,)).fetchone()[0]
        removed = 0
        _forget_uses_after(store, step)
        if cut is not None:
            late = db.execute("SELECT n, step FROM rows WHERE n >= ? AND step <= ?", (cut, step)).fetchall()
            kept = [(s, _read(store, n), _uses_of(store, n)) for n, s in late]
            removed = store.last_n() - cut + 1 - len(kept)
            _remove_from(store, cut)
            for kept_step, record, uses in kept:
                if record is not None:
                    store.add_trajectories(kept_step, [record])
                    store.rows.add_uses([(record.trajectory.id, use) for use in uses])
            if lost := sum(record is None for _, record, _ in kept):
                message = f"{lost} earlier trajectories could not be read when the run was resumed, and are missing"
                store.add_event("record", message, step, time.time(), b"{}")
        store.metrics.remove_after(step)
        db.execute("DELETE FROM events WHERE step > ? AND kind NOT IN ('record', 'error', 'control')", (step,))
        db.execute("DELETE FROM steps WHERE step > ?", (step,))
        db.execute(TIMELINE)  # an older record lacks it
        db.execute("DELETE FROM timeline WHERE step > ?", (step,))
        # Readers that have seen the removed rows start over when the epoch changes.
        store.set_meta("epoch", str(time.time_ns()))
        store.commit()
        return removed
    except BaseException:
        store.rollback()
        raise


def _forget_uses_after(store: RecordStore, step: int) -> None:
    """Remove the updates after a step, and their marks on earlier rollouts."""
    store.db.execute(
        "UPDATE rows SET uses = (coalesce(uses, 0) & ?) | coalesce((SELECT sum(DISTINCT bit.value) FROM uses "
        "JOIN json_each(?) AS bit ON uses.mask & bit.value WHERE uses.n = rows.n AND uses.step <= ?), 0) "
        "WHERE n IN (SELECT n FROM uses WHERE step > ?)",
        (OWN_BITS, json.dumps(LATER_BITS), step, step),
    )
    store.db.execute("DELETE FROM uses WHERE step > ?", (step,))


def _uses_of(store: RecordStore, n: int) -> list[Use]:
    rows = store.db.execute(f"SELECT {USE_COLUMNS} FROM uses WHERE n = ? ORDER BY step", (n,)).fetchall()
    return [use for row in rows if (use := use_of(*row)) is not None]


def _remove_from(store: RecordStore, cut: int) -> None:
    db = store.db
    gone = _texts(store, "n >= ?", cut)
    if all(text is not None for _, text in gone):
        for n, text in gone:
            store.rows.remove_search(n, text or ())
    else:  # what a damaged text has in the index is not known
        db.execute("INSERT INTO search (search) VALUES ('delete-all')")
        store.rows.add_search((n, text) for n, text in _texts(store, "n < ?", cut) if text is not None)
    head = db.execute(
        "SELECT first_n, body, tokens FROM chunks WHERE first_n < ? AND first_n + count > ?", (cut, cut)
    ).fetchone()
    for table in ("rows", "cards", "overflow", "uses", "extras"):
        db.execute(f"DELETE FROM {table} WHERE n >= ?", (cut,))
    db.execute("DELETE FROM chunks WHERE first_n >= ?", (cut,))
    for table, column in (("groups", "grp"), ("prompts", "prompt")):  # pages of groups need ids without holes
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


def _texts(store: RecordStore, where: str, cut: int) -> list[tuple[int, tuple[str, ...] | None]]:
    """Return the texts in the index by number, None for a damaged one."""
    records = (
        (n, _read(store, n)) for (n,) in store.db.execute(f"SELECT n FROM rows WHERE {where}", (cut,)).fetchall()
    )
    return [(n, None if record is None else codec.search_text(record)) for n, record in records]


_DAMAGE = (IndexError, KeyError, TypeError, ValueError, AttributeError)


def _read(store: RecordStore, n: int) -> TrajectoryRecord | None:
    """Return a trajectory, without its tokens if these are damaged; None if its text is."""
    try:
        first, body, tokens = store.db.execute(
            "SELECT first_n, body, tokens FROM chunks WHERE first_n <= ? ORDER BY first_n DESC LIMIT 1", (n,)
        ).fetchone()
        record = codec.decode_body(codec.decompress(body).split(b"\n")[n - first])
        found = store.db.execute(
            "SELECT tools FROM toolsets JOIN rows ON rows.toolset = toolsets.id WHERE rows.n = ?", (n,)
        ).fetchone()
        tools = tuple(ToolSpec.from_json(t) for t in json.loads(found[0])) if found else ()
    except _DAMAGE:
        return None
    arrays = None
    with suppress(*_DAMAGE):
        arrays = codec.decode_tokens(codec.decompress(tokens), n - first) if tokens is not None else None
    return replace(record, trajectory=replace(record.trajectory, tools=tools), tokens=arrays)

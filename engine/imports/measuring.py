"""Means of steps for the charts, if the writer logged none."""

from __future__ import annotations

import json
from collections import Counter
from sqlite3 import Connection

from ...configs import metric_names as metric
from .convert import TEXT
from .index_store import IndexStore

_TRAIN = "rows.split = (SELECT id FROM labels WHERE kind = 'split' AND name = 'train')"
"""Rollouts of the training. Evaluations and judges count only in a dump without training rollouts."""


def measure(store: IndexStore, *, whole: bool) -> None:
    """Store means of steps: of complete steps while files are read, and (`whole`) of all changed steps afterwards."""
    db = store.db
    split = _TRAIN if db.execute(f"SELECT 1 FROM rows WHERE {_TRAIN} LIMIT 1").fetchone() else "1"
    last_n = str(store.record.last_n())
    if whole and store.meta("measured") == last_n:
        return
    if whole:
        sql, params = f"SELECT step, sum({split}) FROM rows WHERE step IS NOT NULL GROUP BY step", ()
    else:
        last = db.execute("SELECT coalesce(max(step), -1) FROM measured").fetchone()[0]
        sql = (
            f"SELECT step, sum({split}) FROM rows WHERE step > ? AND step < (SELECT max(step) FROM rows) GROUP BY step"
        )
        params = (last,)
    known = dict(db.execute("SELECT step, rollouts FROM measured"))
    changed = [(step, size) for step, size in db.execute(sql, params).fetchall() if known.get(step) != size]
    last_split = store.meta("measured_split")
    if whole and last_split not in (None, split):  # the first training rollout: means of evaluations go
        known = dict.fromkeys(known, -1)
        changed = [(step, size) for step, size in db.execute(sql, params).fetchall() if size or step in known]
    logged = {name for (name,) in db.execute("SELECT name FROM logged")}
    store.record.begin()
    if whole or last_split is None:
        store.record.set_meta("measured_split", split)
    for step, size in changed:
        before = step in known  # a mean of an evaluation may have to go
        values = {k: v for k, v in _means(db, step, split).items() if k not in logged and (before or v is not None)}
        store.record.metrics.replace(step, values)
        db.execute("INSERT OR REPLACE INTO measured VALUES (?, ?)", (step, size))
    if whole:
        means = {name: mean for name, mean in _means(db, None, split).items() if mean is not None}
        store.record.set_meta("means", json.dumps(means))
        store.record.set_meta("measured", last_n)
    store.record.commit()


def _means(db: Connection, step: int | None, split: str) -> dict[str, float | None]:
    """Return means over the rollouts of one step, or of all steps for None."""
    where, params = (f"rows.step = ? AND {split}", (step,)) if step is not None else (split, ())
    reward, right, labelled, turns, tokens = db.execute(
        f"SELECT avg(reward), sum(correct = 1), count(correct), avg(turns), avg(tokens) FROM rows WHERE {where}",
        params,
    ).fetchone()
    means = {
        metric.REWARD_MEAN: reward,
        metric.SUCCESS_TRAIN: right / labelled if labelled else None,
        metric.TURNS: turns,
        metric.TOKENS_TOTAL: tokens,
    }
    for name, mean in db.execute(
        f"SELECT labels.name, avg(number) FROM labels CROSS JOIN rows CROSS JOIN extras WHERE {where} "
        "AND labels.kind = 'extra' AND labels.name GLOB 'component.*' "
        "AND extras.name = labels.id AND extras.n = rows.n GROUP BY 1",
        params,
    ):
        means[metric.COMPONENT_RAW(name.removeprefix("component."))] = mean
    return {**means, **(_actions(db, step, split) if step is not None else {})}


def _actions(db: Connection, step: int, split: str) -> dict[str, float]:
    """Return the share of each action in the turns of one step. Turns without a call do not count."""
    counts: Counter[str] = Counter()
    for (actions,) in db.execute(
        f"SELECT cards.actions FROM cards JOIN rows ON rows.n = cards.n WHERE step = ? AND {split}", (step,)
    ):
        counts.update(actions.split(","))
    names = {str(id_): name for id_, name in db.execute("SELECT id, name FROM labels WHERE kind = 'action'")}
    known = {names[id_]: count for id_, count in counts.items() if names.get(id_, TEXT) != TEXT}
    whole = sum(known.values())
    return {metric.ACTION_SHARE(name): count / whole for name, count in known.items()}

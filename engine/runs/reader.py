"""Read the record of a run: only what is on screen, at any size, while it is being written or after a crash."""

from __future__ import annotations

import json
import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...envs.tools import ToolSpec
from . import filters, histogram, search, series
from .connection import Connection
from .errors import FilterError, RecordDamaged
from .labels import Labels
from .learning import USE_COLUMNS, Use, marks_of, use_of
from .paths import DATABASE
from .schema import ADDED, FLAG_SENT, columns_of, version
from .status import look
from .types import SCHEMA_VERSION, Event, RunInfo, StoredTokens, TrajectoryRecord, TrajectoryRow
from .views import Count, View

_VIEWS = 12
_ROW_COLUMNS = {
    "n": "rows.n",
    "id": "cards.id",
    "step": "step",
    "group": "groups.name",
    "prompt_id": "prompts.name",
    "rollout": "rollout",
    "env": "env",
    "split": "split",
    "reward": "reward",
    "advantage": "advantage",
    "correct": "correct",
    "turns": "turns",
    "tokens": "tokens",
    "penalties": "penalties",
    "stop": "stop",
    "actions": "cards.actions",
    "prompt": "prompts.head",
    "answer": "cards.answer",
    "rules": "rules",
    "policy_version": "version",
    "uses": "uses",
    "gate": "gate",
    "confidence": "confidence",
    "flags": "flags",
}
"""What a row of a list is made of, by name, and where it stands in the database."""
_ROW_TABLES = (
    "rows JOIN cards ON cards.n = rows.n LEFT JOIN groups ON groups.id = rows.grp "
    "LEFT JOIN prompts ON prompts.id = rows.prompt"
)


class RunReader:
    """The record of one run, opened for reading. Opening reads no rows.

    Several threads may use one reader; their queries wait for each other, so a search belongs in a reader of its
    own. `problems` says in sentences what of this record cannot be read; methods then give what they can.
    """

    def __init__(self, run_dir: Path | str) -> None:
        self.run_dir = Path(run_dir)
        self.problems: list[str] = []
        self._damages = 0
        self._connection: Connection | None = None
        self._labels: Labels | None = None
        self._views: OrderedDict[tuple[str, str, str, bool], View] = OrderedDict()
        self._toolsets: dict[int, tuple[ToolSpec, ...]] = {}
        self._byte_level: bool | None = None
        self._epoch: str | None = None
        self._held: frozenset[str] = frozenset()
        self._open()

    def close(self) -> None:
        """Close the database; a query in another thread is stopped."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def interrupt(self) -> None:
        """Stop the query that runs now in another thread; it raises QueryInterrupted there."""
        if self._connection is not None:
            self._connection.interrupt()

    def info(self) -> RunInfo:
        """Facts and status of the run, found by looking at its processes; the step, by looking into the record."""
        info = look(self.run_dir)
        return replace(info, step=max(info.step, self.last_step()))

    # Metrics and events

    def metric_names(self) -> list[str]:
        """All names, in order of first appearance."""
        db = self._ready()
        return [] if db is None else series.names(db)

    def metric(
        self, name: str, *, after_step: int = -1, until_step: int | None = None, max_points: int | None = None
    ) -> list[tuple[int, float]]:
        """`[(step, value)]` in order of steps. With `max_points`, means of equal spans of steps (see `band`)."""
        db = self._ready()
        return [] if db is None else series.points(db, name, after_step, max_points, until_step)

    def band(self, name: str, *, after_step: int = -1, max_points: int = 400) -> list[series.Band]:
        """A long metric for drawing: per span of steps its last step, mean, minimum and maximum."""
        db = self._ready()
        return [] if db is None else series.band(db, name, after_step, max_points)

    def metrics_since(self, rowid: int, limit: int = 20_000) -> tuple[int, dict[str, list[tuple[int, float]]]]:
        """What was recorded after a row id: the new last id, and points by name; at most `limit` of them a call."""
        db = self._ready()
        return (rowid, {}) if db is None else series.since(db, rowid, limit)

    def latest(self) -> dict[str, float]:
        """The last value of every metric."""
        return {name: value for name, (_, value) in self.latest_points().items()}

    def latest_points(self) -> dict[str, tuple[int, float]]:
        """The last value of every metric, with its step."""
        db = self._ready()
        return {} if db is None else series.latest(db)

    def last_step(self) -> int:
        """The last step of which anything is recorded; 0 before."""
        return int(self._scalar("SELECT max(step) FROM steps") or 0)

    def step_times(self, max_points: int = 400) -> list[tuple[int, float]]:
        """`[(step, seconds since the epoch)]`: when the first thing of a step was recorded; of some steps of many."""
        db = self._ready()
        return [] if db is None else series.times(db, max_points)

    def events(self, kinds: Iterable[str] | None = None, *, after_id: int = 0, limit: int = 200) -> list[Event]:
        """The last `limit` events after an id, oldest first."""
        wanted = list(kinds) if kinds is not None else None
        where = f"AND kind IN ({','.join('?' * len(wanted))})" if wanted is not None else ""
        rows = self._all(
            f"SELECT id, kind, time, step, message, data FROM events WHERE id > ? {where} ORDER BY id DESC LIMIT ?",
            (after_id, *(wanted or ()), limit),
        )
        return [Event(kind=k, message=m, step=s, data=_json(d), time=t, id=i) for i, k, t, s, m, d in reversed(rows)]

    # Lists of trajectories

    def total(self) -> int:
        """Number of trajectories of the run; also the number `n` of the last one."""
        return int(self._scalar("SELECT max(n) FROM rows") or 0)

    def first(self, split: str) -> int | None:
        """The number of the first trajectory of a split (`train`, `eval`), or None."""
        id_ = self._scalar("SELECT id FROM labels WHERE kind = 'split' AND name = ?", (split,))
        return (
            self._scalar("SELECT n FROM rows WHERE split = ? ORDER BY n LIMIT 1", (id_,)) if id_ is not None else None
        )

    def count(self, filter: str = "", search: str = "") -> Count:
        """How many trajectories match; `exact` of the result says whether it is all or a lower bound."""
        view = self._view(filter, search)
        return Count.of(0) if view is None else view.count()

    def least(self, filter: str = "", search: str = "", sort: str = "n", descending: bool = False) -> Count:
        """The count of a view when it is known without counting, else a lower bound, at once."""
        view = self._view(filter, search, sort, descending)
        return Count.of(0) if view is None else view.least()

    def page(
        self,
        *,
        filter: str = "",
        search: str = "",
        sort: str = "n",
        descending: bool = False,
        offset: int = 0,
        limit: int = 100,
    ) -> list[TrajectoryRow]:
        """Rows `offset` … `offset + limit` of a view. Raises FilterError for what cannot be understood."""
        view = self._view(filter, search, sort, descending)
        return [] if view is None else self.rows(view.page(offset, limit))

    def seek(
        self,
        n: int,
        direction: int,
        *,
        filter: str = "",
        search: str = "",
        sort: str = "n",
        descending: bool = False,
    ) -> TrajectoryRow | None:
        """The row after (`+1`) or before (`-1`) trajectory `n` in a view, which need not itself be in the view."""
        view = self._view(filter, search, sort, descending)
        other = None if view is None else view.neighbour(n, direction)
        found = [] if other is None else self.rows([other])
        return found[0] if found else None

    def rows(self, numbers: Sequence[int]) -> list[TrajectoryRow]:
        """The rows with these numbers, in this order; those that are not there are left out."""
        found: dict[int, TrajectoryRow] = {}
        for start in range(0, len(numbers), 500):
            part = numbers[start : start + 500]
            before = self._damages
            marks = ",".join("?" * len(part))
            rows = self._all(f"SELECT {self._row_columns()} FROM {_ROW_TABLES} WHERE rows.n IN ({marks})", part)
            if self._damages > before:  # a damaged page: one by one, so that it costs only its own rows
                single = f"SELECT {self._row_columns()} FROM {_ROW_TABLES} WHERE rows.n = ?"
                rows = [row for n in part for row in self._all(single, (n,))]
            found.update((row[0], self._row(row)) for row in rows)
        self._add_extras(found)
        return [found[n] for n in numbers if n in found]

    def _with_extras(self, rows: Sequence[TrajectoryRow]) -> list[TrajectoryRow]:
        found = {row.n: row for row in rows}
        self._add_extras(found)
        return list(found.values())

    def _add_extras(self, rows: dict[int, TrajectoryRow]) -> None:
        """The record's own columns of some rows, into them. Most records have none."""
        labels = self._labels
        names = labels.of_kind("extra") if labels is not None else {}
        if not names or labels is None:
            return
        numbers = list(rows)
        for start in range(0, len(numbers), 500):
            part = numbers[start : start + 500]
            sql = (
                f"SELECT n, name, number, text FROM extras WHERE name IN ({','.join('?' * len(names))}) "
                f"AND n IN ({','.join('?' * len(part))})"
            )
            values: dict[int, dict[str, Any]] = {}
            for n, name, number, text in self._all(sql, [*names.values(), *part]):
                values.setdefault(n, {})[labels.names[name]] = number if text is None else text
            rows.update((n, replace(rows[n], extra=extra)) for n, extra in values.items())

    def group(self, group: str) -> list[TrajectoryRow]:
        """The rollouts of one group, in order of rollout."""
        rows = self._all(
            f"SELECT {self._row_columns()} FROM {_ROW_TABLES} WHERE grp = (SELECT id FROM groups WHERE name = ?) "
            "ORDER BY rollout, rows.n LIMIT 4096",
            (group,),
        )
        return self._with_extras([self._row(r) for r in rows])

    def prompt(self, prompt_id: str, limit: int = 200) -> list[TrajectoryRow]:
        """The last `limit` rollouts of one prompt over the whole run, oldest first."""
        rows = self._all(
            f"SELECT {self._row_columns()} FROM {_ROW_TABLES} "
            "WHERE rows.prompt = (SELECT id FROM prompts WHERE name = ?) ORDER BY rows.n DESC LIMIT ?",
            (prompt_id, limit),
        )
        return self._with_extras([self._row(r) for r in reversed(rows)])

    def histogram(
        self, column: str = "reward", bins: int = 20, filter: str = "", search: str = ""
    ) -> histogram.Histogram:
        """`[(low, high, count)]` of equal bins over the whole run's range; counts may be estimated (`exact`)."""
        view = self._view(filter, search)
        db = self._ready()
        return histogram.Histogram() if view is None or db is None else histogram.of(db, view, column, bins)

    def filter_notes(self, filter: str) -> tuple[str, ...]:
        """Names in a filter that this record does not hold, each with the nearest that it does."""
        labels = self._names()
        return () if labels is None else filters.parse(filter).compile(labels, self._held).notes

    def names(self, kind: str) -> list[str]:
        """Recorded names of a kind: `action`, `penalty`, `env`, `split` or `stop`."""
        labels = self._names()
        return [] if labels is None else list(labels.of_kind(kind))

    # One trajectory

    def trajectory(self, id_or_n: str | int) -> TrajectoryRecord:
        """A whole trajectory without its tokens, by number or id. Raises LookupError or RecordDamaged."""
        from . import codec

        n = self.number(id_or_n)
        lines, _, first = self._load(n)
        try:
            return codec.decode_body(lines[n - first], self._tools_of(n))
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise RecordDamaged(f"trajectory {id_or_n} of {self.run_dir} cannot be read ({error})") from error

    def uses(self, id_or_n: str | int) -> list[Use]:
        """What updates did with a trajectory, in order: its own step's first. Raises as `trajectory` does."""
        n = self.number(id_or_n)
        own = self.trajectory(n).use
        rows = []
        if "uses" in self._held:
            rows = self._all(f"SELECT {USE_COLUMNS} FROM uses WHERE n = ? ORDER BY step, mask", (n,))
        return [*([] if own is None else [own]), *(use_of(*row) for row in rows)]

    def tokens(self, id_or_n: str | int) -> StoredTokens | None:
        """Token ids, agent mask, log-probs and advantages of a trajectory, or None when they were not recorded."""
        from . import codec

        n = self.number(id_or_n)
        _, arrays, first = self._load(n, tokens=True)
        try:
            return None if arrays is None else codec.decode_tokens(arrays, n - first)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise RecordDamaged(f"the tokens of trajectory {id_or_n} cannot be read ({error})") from error

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """The text of token ids, without a tokenizer; an id that is not in the vocabulary becomes `<id>`."""
        wanted = sorted({int(i) for i in ids})
        texts: dict[int, str] = {}
        for start in range(0, len(wanted), 500):
            part = wanted[start : start + 500]
            marks = ",".join("?" * len(part))
            texts.update(self._all(f"SELECT id, text FROM vocabulary WHERE id IN ({marks})", part))
        if self._byte_level is None:
            self._byte_level = self._scalar("SELECT value FROM meta WHERE key = 'vocabulary'") == "byte-level"
        if self._byte_level:
            from .codec import from_byte_level

            texts = {i: from_byte_level(t) for i, t in texts.items()}
        return [texts.get(int(i), f"<{int(i)}>") for i in ids]

    def number(self, id_or_n: str | int) -> int:
        """The number of a trajectory by id (the latest of that id) or number. Raises LookupError."""
        if isinstance(id_or_n, str):
            n = self._scalar("SELECT max(n) FROM cards WHERE id = ?", (id_or_n,))
            if n is None and id_or_n.isdigit():
                n = self._scalar("SELECT n FROM rows WHERE n = ?", (int(id_or_n),))
        else:
            n = self._scalar("SELECT n FROM rows WHERE n = ?", (id_or_n,))
        if n is None:
            held = f"it has numbers 1 to {self.total()}" if self.total() else "it has none yet"
            raise LookupError(f"no trajectory {id_or_n!r} in run {self.run_dir.name}; {held}")
        return int(n)

    # Inside

    def _open(self) -> None:
        path = self.run_dir / DATABASE
        if not path.exists():
            return
        try:
            connection = Connection(path)
            found = version(connection.db)
            if found == 0:  # the writer has made the file but not its tables yet
                connection.close()
                return
            self._connection = connection
            self._labels = Labels(connection.db)
            self._held = columns_of(connection.db)
        except (RecordDamaged, sqlite3.Error) as error:
            self._problem(str(error))
            return
        if found > SCHEMA_VERSION:
            self._problem(
                f"this record was written by a newer grpo-tui (record version {found}; this one knows up to "
                f"{SCHEMA_VERSION}); what can be read is shown"
            )

    def _extent(self) -> tuple[int, str | None]:
        """The number of the last trajectory, and which life of the run the numbers are of (see `truncate_after`)."""
        rows = self._all("SELECT (SELECT max(n) FROM rows), (SELECT value FROM meta WHERE key = 'epoch')")
        return (int(rows[0][0] or 0), rows[0][1]) if rows else (0, None)

    def _ready(self) -> Connection | None:
        if self._connection is None and not self.problems:
            self._open()  # a run that has just begun
        return self._connection

    def _problem(self, message: str) -> None:
        if message not in self.problems:
            self.problems.append(message)

    def _all(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of a query; where the file is damaged, those before the damage."""
        db = self._ready()
        rows: list[tuple[Any, ...]] = []
        if db is None:
            return rows
        try:
            rows.extend(db.each(sql, params))
        except RecordDamaged as error:
            self._damages += 1
            self._problem(str(error))
        return rows

    def _scalar(self, sql: str, params: Sequence[Any] = ()) -> Any:
        rows = self._all(sql, params)
        return rows[0][0] if rows else None

    def _names(self) -> Labels | None:
        db = self._ready()
        if db is None:
            return None
        if self._labels is None:
            self._labels = Labels(db.db)
        try:
            with db.lock:
                self._labels.refresh()
        except sqlite3.Error as error:
            self._problem(f"{self.run_dir / DATABASE}: names cannot be read ({error})")
        return self._labels

    def _view(self, filter: str, text: str, sort: str = "n", descending: bool = False) -> View | None:
        expression, match = filters.parse(filter), search.match_expression(text)
        labels, db = self._names(), self._ready()
        if labels is None or db is None:
            return None
        last, epoch = self._extent()
        if epoch != self._epoch:
            self._views.clear()
            self._epoch = epoch
        compiled = expression.compile(labels, self._held)
        key = (f"{compiled.sql} {compiled.params}", match, sort, descending)
        view = self._views.pop(key, None)
        if view is None:
            view = View(db, compiled.sql, compiled.params, match, sort, descending)
        self._views[key] = view
        if len(self._views) > _VIEWS:
            self._views.popitem(last=False)
        try:
            view.refresh(last)
        except sqlite3.OperationalError as error:
            raise FilterError(f"this search cannot be understood ({error})") from error
        return view

    def _row_columns(self) -> str:
        """The columns of a row; those that an older record has not are NULL."""
        held = self._held
        return ", ".join("NULL" if c in ADDED and c not in held else c for c in _ROW_COLUMNS.values())

    def _row(self, values: tuple[Any, ...]) -> TrajectoryRow:
        row = dict(zip(_ROW_COLUMNS, values, strict=True))
        labels = self._labels.names if self._labels is not None else {}
        if self._labels is not None and not labels.keys() >= {row["env"], row["stop"], row["split"]}:
            self._names()
        return TrajectoryRow(
            n=row["n"],
            id=row["id"],
            step=row["step"],
            group=row["group"] or "",
            prompt_id=row["prompt_id"] or "",
            rollout=row["rollout"],
            env=labels.get(row["env"], ""),
            split=labels.get(row["split"], ""),
            reward=row["reward"],
            advantage=row["advantage"],
            correct=None if row["correct"] is None else bool(row["correct"]),
            turns=row["turns"],
            tokens=row["tokens"],
            penalties=row["penalties"],
            stop_reason=labels.get(row["stop"], ""),
            actions=tuple(labels.get(int(a), "?") for a in row["actions"].split(",") if a),
            prompt=row["prompt"] or "",
            answer=row["answer"],
            rules=() if not row["rules"] or self._labels is None else self._labels.of_mask("penalty", row["rules"]),
            policy_version=row["policy_version"],
            uses=None if row["uses"] is None else marks_of(row["uses"]),
            gate=labels.get(row["gate"], ""),
            confidence=row["confidence"],
            sent=None if row["gate"] is None else bool(row["flags"] & FLAG_SENT),
        )

    def _load(self, n: int, tokens: bool = False) -> tuple[list[bytes], bytes | None, int]:
        """The JSON lines of the blob that holds trajectory n, its token arrays if asked for, and its first number."""
        from . import codec

        row = self._all(
            f"SELECT first_n, body, {'tokens' if tokens else 'NULL'} FROM chunks WHERE first_n <= ? "
            "ORDER BY first_n DESC LIMIT 1",
            (n,),
        )
        if not row:
            raise RecordDamaged(f"trajectory {n} of {self.run_dir} cannot be read: its text is missing")
        first, body, arrays = row[0]
        try:
            lines = [] if tokens else codec.decompress(body).split(b"\n")
            return lines, None if arrays is None else codec.decompress(arrays), first
        except ValueError as error:
            raise RecordDamaged(f"trajectory {n} of {self.run_dir} cannot be read: {error}") from error

    def _tools_of(self, n: int) -> tuple[ToolSpec, ...]:
        id_ = self._scalar("SELECT toolset FROM rows WHERE n = ?", (n,))
        if id_ is None:
            return ()
        if id_ not in self._toolsets:
            text = self._scalar("SELECT tools FROM toolsets WHERE id = ?", (id_,))
            self._toolsets[id_] = tuple(ToolSpec.from_json(t) for t in json.loads(text)) if text else ()
        return self._toolsets[id_]


def _json(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}

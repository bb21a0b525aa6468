"""The list of rollouts, written: `rows`, `cards`, `overflow`, `extras`, `uses` and the full-text index."""

from __future__ import annotations

import hashlib
import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ....envs.tools import ToolSpec
from .. import codec
from ..columns import COLUMNS, Kind, Listed
from ..labels import Labels, clean
from ..learning import Use, data_of
from ..schema import SEARCH_COLUMNS

ANSWER_LENGTH = 200
PROMPT_LENGTH = 400
_REMEMBERED = 4096
"""Names of groups and prompts that are kept in memory. Others are looked up."""
_NAMES = [column.name for column in COLUMNS]
_INTERNED = [column.name for column in COLUMNS if column.kind is Kind.NAME]
_ROW = f"INSERT INTO rows (n, {', '.join(_NAMES)}) VALUES ({', '.join('?' * (1 + len(_NAMES)))})"
_SEARCHED = ", ".join(SEARCH_COLUMNS)
_MARKS = ", ".join("?" * (1 + len(SEARCH_COLUMNS)))
_SEARCH = f"INSERT INTO search (rowid, {_SEARCHED}) VALUES ({_MARKS})"
_UNSEARCH = f"INSERT INTO search (search, rowid, {_SEARCHED}) VALUES ('delete', {_MARKS})"
_EXTRA = "INSERT OR REPLACE INTO extras VALUES (?, ?, ?, ?)"
_USE = "INSERT OR REPLACE INTO uses (n, step, mask, weight, advantage, data) VALUES (?, ?, ?, ?, ?, ?)"
_MARK = "UPDATE rows SET uses = coalesce(uses, 0) | ? WHERE n = ?"


class Names:
    """Ids of names that are stored once: labels, groups, prompts and sets of tools."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.labels = Labels(db)
        self._named: dict[str, OrderedDict[str, int]] = {"groups": OrderedDict(), "prompts": OrderedDict()}
        self._toolsets: dict[int, tuple[tuple[ToolSpec, ...], int]] = {}

    def forget(self) -> None:
        """Drop the cached names, after a rollback or when rows were removed."""
        self.labels.forget()
        self._toolsets.clear()
        for names in self._named.values():
            names.clear()

    def named(self, table: str, name: str, **more: str) -> int:
        """Return the id of a name in `groups` or `prompts`, adding it with its other columns if it is new."""
        names = self._named[table]
        known = names.get(name)
        if known is not None:
            names.move_to_end(name)
            return known
        text = clean(name)
        found = self.db.execute(f"SELECT id FROM {table} WHERE name = ?", (text,)).fetchone()
        if found is not None:
            known = int(found[0])
        else:
            values = (text, *map(clean, more.values()))
            sql = f"INSERT INTO {table} ({', '.join(('name', *more))}) VALUES ({', '.join('?' * len(values))})"
            known = int(self.db.execute(sql, values).lastrowid or 0)
        names[name] = known
        if len(names) > _REMEMBERED:
            names.popitem(last=False)
        return known

    def toolset(self, env: str, tools: tuple[ToolSpec, ...]) -> int | None:
        """Return the id of the tools that an environment declares; None without tools."""
        if not tools:
            return None
        known = self._toolsets.get(id(tools))
        if known is not None and known[0] is tools:
            return known[1]
        text = codec.encode_json([t.to_json() for t in tools]).decode()
        env = clean(env)
        digest = hashlib.sha256(f"{env}\n{text}".encode()).hexdigest()
        self.db.execute("INSERT OR IGNORE INTO toolsets (digest, env, tools) VALUES (?, ?, ?)", (digest, env, text))
        id_ = int(self.db.execute("SELECT id FROM toolsets WHERE digest = ?", (digest,)).fetchone()[0])
        if len(self._toolsets) > 256:
            self._toolsets.clear()
        self._toolsets[id(tools)] = (tools, id_)  # holding the tuple keeps its id() from being reused
        return id_


class RowTables:
    """Writes rows inside the transactions of `RecordStore`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.names = Names(db)

    def add(self, trajectories: Sequence[Listed]) -> int:
        """Append rows without their text. Returns the number of the first."""
        first = int(self.db.execute("SELECT coalesce(max(n), 0) FROM rows").fetchone()[0]) + 1
        self._put(first, trajectories)
        return first

    def replace(self, n: int, trajectory: Listed) -> None:
        """Replace the row of a trajectory. Its text stays."""
        for table in ("rows", "cards", "overflow", "extras"):
            self.db.execute(f"DELETE FROM {table} WHERE n = ?", (n,))
        self._put(n, [trajectory])
        sql = "UPDATE prompts SET head = ?1 WHERE name = ?2 AND head <> ?1"
        self.db.execute(sql, (_head(trajectory), clean(trajectory.prompt_id)))

    def add_search(self, texts: Iterable[tuple[int, tuple[str, ...]]]) -> None:
        """Index the texts of trajectories (see `codec.search_text`) by number."""
        self.db.executemany(_SEARCH, ((n, *text) for n, text in texts))

    def remove_search(self, n: int, text: tuple[str, ...]) -> None:
        """Remove a trajectory from the full-text index, which needs the very text that was added."""
        self.db.execute(_UNSEARCH, (n, *text))

    def add_extras(self, n: int, extra: Mapping[str, Any]) -> None:
        """Add columns of the record's own to a row, or replace those of the same name."""
        self.db.executemany(_EXTRA, self._extras(n, extra))

    def add_uses(self, uses: Sequence[tuple[str, Use]]) -> None:
        """Add how later updates used rollouts, by their ids. Unknown ids are skipped."""
        for trajectory_id, use in uses:
            n = self.db.execute("SELECT max(n) FROM cards WHERE id = ?", (clean(trajectory_id),)).fetchone()[0]
            if n is not None:
                data = codec.encode_json(data_of(use)).decode("utf-8", "replace")
                self.db.execute(_USE, (n, use.step, use.mask, use.weight, use.advantage, data))
                self.db.execute(_MARK, (use.mask, n))

    def _put(self, first: int, trajectories: Sequence[Listed]) -> None:
        rows: list[tuple[Any, ...]] = []
        cards: list[tuple[Any, ...]] = []
        overflow: list[tuple[int, int]] = []
        extras: list[tuple[Any, ...]] = []
        intern = self.names.labels.intern
        for n, of in enumerate(trajectories, first):
            actions = [intern("action", label) for label in of.labels or ()]
            action_mask, rest = self.names.labels.mask(set(actions))
            rule_mask, more = self.names.labels.mask({intern("penalty", rule) for rule in of.rules})
            links = {
                "actions": action_mask,
                "rules": rule_mask,
                "penalties": len(of.rules),
                "grp": self.names.named("groups", of.group),
                "prompt": self.names.named("prompts", of.prompt_id, head=_head(of)),
                "toolset": self.names.toolset(str(of.values.get("env") or ""), of.tools),
            }
            values = {**of.values, **links}
            for name in _INTERNED:
                if (text := values.get(name)) is not None:
                    values[name] = intern(name, str(text))
            rows.append((n, *map(values.get, _NAMES)))
            answer = None if of.answer is None else clean(str(of.answer)[:ANSWER_LENGTH])
            cards.append((n, clean(of.id), ",".join(map(str, actions)), answer))
            overflow.extend((label, n) for label in rest + more)
            extras.extend(self._extras(n, of.extra))
        self.db.executemany(_ROW, rows)
        self.db.executemany("INSERT INTO cards VALUES (?, ?, ?, ?)", cards)
        if overflow:
            self.db.executemany("INSERT OR IGNORE INTO overflow VALUES (?, ?)", overflow)
        if extras:
            self.db.executemany(_EXTRA, extras)

    def _extras(self, n: int, extra: Mapping[str, Any]) -> Iterator[tuple[int, int, float | None, str | None]]:
        intern = self.names.labels.intern
        for name, value in extra.items():
            if isinstance(value, (bool, int, float)):
                yield intern("extra", name), n, float(value) if abs(value) < 1e300 else None, None
            elif value is not None:
                text = value if isinstance(value, str) else codec.encode_json(value).decode("utf-8", "replace")
                yield intern("extra", name), n, None, clean(text[:ANSWER_LENGTH])


def _head(of: Listed) -> str:
    """Return the beginning of a prompt as lists show it."""
    return " ".join(of.head[: PROMPT_LENGTH * 2].split())[:PROMPT_LENGTH]

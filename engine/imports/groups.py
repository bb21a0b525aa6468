"""The groups of an index, and the steps that a resumed training repeated."""

from __future__ import annotations

import json
import sqlite3
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..runs.labels import clean
from .rollout import Rollout

_REMEMBERED = 20_000


@dataclass
class _Group:
    """The rollouts of a group. `attempt`: the number of resumes before its first rollout was written. `earlier`: the
    number of earlier groups with this name."""

    split: str = ""
    step: int | None = None
    source: int = 0
    attempt: int = 0
    earlier: int = 0
    ids: list[str] = field(default_factory=list)
    indices: list[int | None] = field(default_factory=list)


class DumpGroups:
    """Assigns one step and one split to each group, and detects groups that a file holds twice.

    A training that resumes from a checkpoint repeats steps. The repeated rollouts have the ids or indices of an earlier
    attempt, or belong to a group that was already full, in a file whose groups all have the same size.
    """

    def __init__(self, db: sqlite3.Connection, state: str | None = None) -> None:
        """state: the `state` saved by the previous process that wrote the index."""
        self.db = db
        self.forget()
        self._stored = db.execute("SELECT 1 FROM rows LIMIT 1").fetchone() is not None
        if not state:
            return
        restored = json.loads(state)
        self._attempts, self._last, self._latest = restored["attempts"], restored["last"], restored["latest"]
        self._resumed.update(restored["resumed"])
        self._sizes.update({split: set(sizes) for split, sizes in restored["sizes"].items()})
        step, names = restored["present"]
        self._present = step, {name: self._group(name) for name in names}

    def state(self) -> str:
        """Return the state that another process needs to continue, as JSON."""
        state = {
            "attempts": {name: group.attempt for name, group in self._known.items() if group.attempt},
            "last": self._last,
            "latest": self._latest,
            "resumed": self._resumed,
            "sizes": {split: sorted(sizes)[:2] for split, sizes in self._sizes.items()},  # two stand for several
            "present": (self._present[0], list(self._present[1])),
        }
        return json.dumps(state)

    def forget(self) -> None:
        self._known: OrderedDict[str, _Group] = OrderedDict()
        self._resumed: defaultdict[str, list[int]] = defaultdict(list)
        """The steps at which the training resumed, by split."""
        self._sizes: defaultdict[str, set[int]] = defaultdict(set)
        """The group sizes of all steps except the present one, by split."""
        self._present: tuple[int | None, dict[str, _Group]] = (None, {})
        """The present step and its groups."""
        self._last: dict[str, str] = {}
        """The name of the last group written, by split."""
        self._latest = -1
        self._attempts: dict[str, int] = {}
        """The nonzero `attempt` values of groups that an earlier process wrote."""
        self._stored = False
        """Whether groups may have rollouts that are not in `_known`."""

    def add(self, name: str, rollout: Rollout, split: str, source: int) -> tuple[str, int, int]:
        """Count a rollout. Return the name of its group and the number of rollouts before it. If the rollout begins a
        repeated group, also return the number of the earlier attempt, else 0."""
        scope = split, rollout.step
        group = self._group(name)
        if group.ids and None not in (group.step, rollout.step) and (group.split, group.step) != scope:
            name = f"{rollout.step}:{name}" if group.split == split else f"{split}:{rollout.step}:{name}"
            group = self._group(name)
        again = bool(group.ids) and group.source == source and self._starts_again(group, rollout, name)
        if self._present[0] != rollout.step:
            for known in self._present[1].values() if not again else ():  # else the last ones may be incomplete
                self._sizes[known.split].add(len(known.ids))
            self._present = rollout.step, {}
        if again:
            if group.attempt == self._attempt(split, rollout.step) and len(self._sizes[split]) < 2:
                self._resumed[split].append(rollout.step or 0)
            group = self._known[name] = _Group(earlier=group.earlier + 1)
        if not group.ids:
            group.split, group.step, group.source = split, rollout.step, source
            group.attempt = self._attempt(split, rollout.step)
        if rollout.step is not None:  # without steps, every group would be of the present step
            self._present[1][name] = group
        group.ids.append(rollout.id)
        group.indices.append(rollout.index)
        self._last[split] = name
        self._latest = max(self._latest, rollout.step or 0)
        return name, len(group.ids) - 1, group.earlier if again else 0

    def _attempt(self, split: str, step: int | None) -> int:
        return 0 if step is None else sum(begin <= step for begin in self._resumed[split])

    def _starts_again(self, group: _Group, rollout: Rollout, name: str) -> bool:
        if rollout.step is None:
            return False
        if group.attempt < self._attempt(group.split, rollout.step) or _repeats(rollout.id or None, group.ids):
            return True
        if not rollout.group and rollout.step >= self._latest:
            return False  # a batch may contain a prompt twice
        if rollout.index is not None:
            return _repeats(rollout.index, group.indices)
        return self._last.get(group.split) != name and self._sizes[group.split] == {len(group.ids)} != {1}

    def _group(self, name: str) -> _Group:
        group = self._known.pop(name, None) or self._read(name)
        self._known[name] = group
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
            self._stored = True
        return group

    def _read(self, name: str) -> _Group:
        group = _Group()
        if self._stored:
            for id_, index, *scope in self.db.execute(
                "SELECT cards.id, rollout, labels.name, step, source FROM rows JOIN cards ON cards.n = rows.n "
                "JOIN places ON places.n = rows.n LEFT JOIN labels ON labels.id = split "
                "WHERE grp = (SELECT id FROM groups WHERE name = ?) ORDER BY rows.n",
                (clean(name),),
            ):
                group.ids.append(id_)
                group.indices.append(index)
                group.split, group.step, group.source = scope
        if group.ids:
            group.attempt = self._attempts.get(name, 0)
            begin = f"{clean(name)} (attempt "
            sql = "SELECT count(*) FROM groups WHERE name BETWEEN ? AND ?"
            group.earlier = self.db.execute(sql, (begin, f"{begin}:")).fetchone()[0]
        return group


def _repeats(id_: object, known: Sequence[object]) -> bool:
    """Return whether a value occurs among known values that all differ, so that it identifies a rollout. False for very
    large groups."""
    return id_ is not None and 1 < len(known) < 4096 and id_ in known and len(set(known)) == len(known)

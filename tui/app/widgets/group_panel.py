"""The neighbours of a rollout in its group, with rewards and advantages, and the route of actions that it took."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....engine.runs.types import TrajectoryRecord, TrajectoryRow
from ...advantage import moments
from ...format import MINUS, fixed, mark
from ...text import width as cells_of
from .line import Line
from .pane import Pane

ARROW = " ▸ "


class GroupPanel(Pane):
    """A click on a neighbour opens it; a click on an action of the route goes to that step."""

    title = "group"

    def __init__(self) -> None:
        super().__init__("group")
        self.rows: Sequence[TrajectoryRow] = ()
        self.n = 0
        self.record: TrajectoryRecord | None = None
        self.step = 0

    def put(self, rows: Sequence[TrajectoryRow], n: int, record: TrajectoryRecord | None, step: int) -> None:
        """The rows of the group, which one is open, and at which step."""
        self.rows, self.n, self.record, self.step = rows, n, record, step
        self.changed()

    def build(self, width: int, height: int) -> list[Line]:
        """Neighbours, the group's spread, then the route."""
        p = self.palette
        if height <= 2:
            return self._short(width)[:height]
        lines = [self._neighbour(row, width) for row in self._visible(height)]
        rewards = [r.reward for r in self.rows if r.reward is not None and math.isfinite(r.reward)]
        if len(rewards) > 1:
            mean, std = moments(rewards)
            for note in (f"mean {fixed(mean)}", f"std (n {MINUS} 1) {fixed(std)}"):
                lines.append(Line(p).gap(2).whole(note, p.faint, width - 2))
            if std < 1e-9:
                lines.append(Line(p).gap(2).add("no spread, no gradient", p.warn, cells=max(1, width - 2)))
        if self.record is not None and self.record.trajectory.steps:
            lines.append(Line(p))
            lines += self._route(width, height - len(lines))
        return lines

    def _visible(self, height: int) -> Sequence[TrajectoryRow]:
        steps = len(self.record.trajectory.steps) if self.record else 0
        room = max(3, height - min(steps + 4, height // 2))
        if len(self.rows) <= room:
            return self.rows
        at = next((i for i, r in enumerate(self.rows) if r.n == self.n), 0)
        start = max(0, min(at - room // 2, len(self.rows) - room))
        return self.rows[start : start + room]

    def _neighbour(self, row: TrajectoryRow, width: int) -> Line:
        p = self.palette
        here = row.n == self.n
        line = Line(p).add("▸ " if here else "  ", p.accent)
        name = str(row.n)
        line.add(name, p.strong if here else p.text, cells=max(4, len(name))).gap()
        line.add(mark(row.correct), p.outcome(row.correct)).gap()
        reward, advantage = fixed(row.reward), fixed(row.advantage, 1 if width < 26 else 2, signed=True)
        room = max(0, width - line.width)
        if len(reward) <= room:
            line.add(reward, p.strong if here else p.text, cells=min(room, max(5, len(reward))), align=">")
        shown = f"A {advantage}" if row.advantage is not None else ""
        room = width - line.width - 1
        if len(shown) <= room:
            line.gap().add(shown, p.sign(row.advantage), cells=min(room, max(8 if width >= 26 else 7, len(shown))))
        line.whole(f"✗{row.penalties}" if row.penalties else "", p.warn, width - line.width)
        line.whole(f" {_used(row)}", p.faint, width - line.width)
        line.hits = [(0, width, ("rollout", row.n))]
        return line

    def _route(self, width: int, room: int) -> list[Line]:
        p = self.palette
        assert self.record is not None
        steps = self.record.trajectory.steps
        breakdown = self.record.breakdown
        rewards = {s.step: s for s in breakdown.steps} if breakdown else {}
        if room >= min(len(steps), 6) and len(steps) <= 40:
            lines = []
            for i, step in enumerate(steps):
                here = i == self.step
                reward = rewards.get(step.index)
                line = Line(p).add("▸ " if here else "  ", p.accent).add(str(i + 1), p.faint, cells=2, align=">").gap()
                name = "? unparsed" if step.label == "?" else step.label
                line.add(name, p.strong if here else p.bad if step.label == "?" else p.text, cells=max(4, width - 13))
                penalised = reward is not None and bool(reward.penalties)
                line.add("✗" if penalised else " ", p.bad)
                line.add(
                    fixed(reward.total, signed=True) if reward else "",
                    p.sign(reward.total if reward else None),
                    cells=6,
                    align=">",
                )
                line.hits = [(0, width, ("step", i))]
                lines.append(line)
            return lines
        line = Line(p)
        lines = [line]
        for i, step in enumerate(steps):
            name = short(None if step.label == "?" else step.label)
            size = cells_of(name) + (len(ARROW) if i else 0)
            if line.width + size > width:
                line = Line(p)
                lines.append(line)
            if i:
                line.add(ARROW if line.width else ARROW[1:], p.faint)
            line.add(name, p.key if i == self.step else p.text, click=("step", i))
        return lines

    def _short(self, width: int) -> list[Line]:
        """Two lines for small screens: the neighbours in a row, and the route."""
        p = self.palette
        first = Line(p)
        at = next((i for i, r in enumerate(self.rows) if r.n == self.n), 0)
        rows = list(self.rows)[max(0, at - 2) :]
        for row in rows:
            item = Line(p).add("▸" if row.n == self.n else " ", p.accent)
            item.add(mark(row.correct), p.outcome(row.correct)).add(str(row.n), p.strong if row.n == self.n else p.text)
            item.add(f" A {fixed(row.advantage, 1, signed=True)}", p.sign(row.advantage)).gap(2)
            item.hits = [(0, item.width, ("rollout", row.n))]
            if first.width + item.width > width:
                break
            first.extend(item)
        return [first, *self._route(width, 0)] if self.record is not None else [first]


def _used(row: TrajectoryRow) -> str:
    """What learning did with a rollout, where it is not simply trained on."""
    return " ".join(mark.replace("_", " ") for mark in row.uses or () if mark != "trained")


def short(action: str | None) -> str:
    """The first word of an action's name, for routes: `SEGMENT_OBJECT_AT` as `SEGMENT`."""
    if action is None:
        return "?"
    head = action.split("_")[0]
    return head if 2 <= len(head) <= 12 else action[:12]

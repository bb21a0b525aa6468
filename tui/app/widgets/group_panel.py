"""The neighbours of a rollout in its group, with rewards and advantages."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....engine.runs.types import TrajectoryRow
from ....rewards.advantages.base import spread
from ...format import MINUS, fixed, mark
from .line import Line
from .pane import Pane


class GroupPanel(Pane):
    """The rollouts of a group. A click opens one."""

    title = "group"

    def __init__(self) -> None:
        super().__init__("group")
        self.rows: Sequence[TrajectoryRow] = ()
        self.n = 0

    def put(self, rows: Sequence[TrajectoryRow], n: int) -> None:
        self.rows, self.n = rows, n
        self.changed()

    def build(self, width: int, height: int) -> list[Line]:
        p = self.palette
        notes: list[Line] = []
        rewards = [r.reward for r in self.rows if r.reward is not None and math.isfinite(r.reward)]
        if len(rewards) > 1:
            mean, std, _ = spread(rewards)
            texts = [f"mean {fixed(mean)}", f"std (n {MINUS} 1) {fixed(std)}"]
            if 2 + len(" · ".join(texts)) <= width:
                texts = [" · ".join(texts)]
            notes += [Line(p).gap(2).whole(text, p.faint, width - 2) for text in texts]
            if std < 1e-9:
                notes.append(Line(p).gap(2).add("no spread, no gradient", p.warn, cells=max(1, width - 2)))
        return [self._neighbour(row, width) for row in self._visible(height - len(notes))] + notes

    def _visible(self, height: int) -> Sequence[TrajectoryRow]:
        room = max(1, height)
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


def _used(row: TrajectoryRow) -> str:
    return " ".join(mark.replace("_", " ") for mark in row.uses or () if mark != "trained")

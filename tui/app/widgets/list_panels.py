"""Panels next to lists of rollouts: the distribution of reward, the row under the cursor, and the rows of a group."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....engine.runs.types import TrajectoryRow
from ....rewards.advantages.base import spread
from ...format import MINUS, count, fixed, mark, number, whole
from .pane import Line, Pane, wrapped


class GroupPanel(Pane):
    """The rollouts of a group. A click opens one."""

    name = title = "group"
    rows: Sequence[TrajectoryRow] = ()
    n = 0

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
        index = next((i for i, r in enumerate(self.rows) if r.n == self.n), 0)
        start = max(0, min(index - room // 2, len(self.rows) - room))
        return self.rows[start : start + room]

    def _neighbour(self, row: TrajectoryRow, width: int) -> Line:
        p = self.palette
        selected = row.n == self.n
        line = Line(p).add("▸ " if selected else "  ", p.accent)
        name = str(row.n)
        line.add(name, p.strong if selected else p.text, cells=max(4, len(name))).gap()
        line.add(mark(row.correct), p.outcome(row.correct)).gap()
        reward, advantage = fixed(row.reward), fixed(row.advantage, 1 if width < 26 else 2, signed=True)
        room = max(0, width - line.width)
        if len(reward) <= room:
            line.add(reward, p.strong if selected else p.text, cells=min(room, max(5, len(reward))), align=">")
        shown = f"A {advantage}" if row.advantage is not None else ""
        room = width - line.width - 1
        if len(shown) <= room:
            line.gap().add(shown, p.sign(row.advantage), cells=min(room, max(8 if width >= 26 else 7, len(shown))))
        line.whole(f"✗{row.penalties}" if row.penalties else "", p.warn, width - line.width)
        used = " ".join(use.replace("_", " ") for use in row.uses or () if use != "trained")
        line.whole(f" {used}", p.faint, width - line.width)
        line.hits = [(0, width, ("rollout", row.n))]
        return line


_LEVELS = " ▁▂▃▄▅▆▇█"


class HistogramPane(Pane):
    """Counts by range of a value, as bars. A click on a bar filters by it; ▲ marks the chosen one."""

    name = "histogram"
    what = "rewards"
    bins: Sequence[tuple[float, float, int]] = ()
    chosen: int | None = None
    _read = False

    def put(self, bins: Sequence[tuple[float, float, int]], chosen: int | None = None, what: str = "rewards") -> None:
        self.bins, self.chosen, self.what, self._read = bins, chosen, what, True
        self.changed()

    def build(self, width: int, height: int) -> list[Line]:
        p = self.palette
        largest = max((n for _, _, n in self.bins), default=0)
        if not largest:
            text = f"no {self.what} to show" if self._read else "reading…"
            return [Line(p).add(text, p.faint, cells=width, align="^")]
        rows = max(1, height - 1)
        side = min(8, max(len(count(largest)), 4))
        cells = max(1, (width - side - 1 - (len(self.what) + 1 if width >= 60 else 0)) // len(self.bins))
        lines = []
        for y in range(rows):
            line = Line(p).add(count(largest) if y == 0 else "", p.faint, cells=side, align=">").gap()
            for index, (low, high, n) in enumerate(self.bins):
                eighths = round(n / largest * rows * 8)
                level = max(0, min(8, eighths - (rows - 1 - y) * 8))
                if n and y == rows - 1:
                    level = max(1, level)
                gap = 1 if cells >= 3 else 0
                style = p.series[0] if (low + high) / 2 >= 0 else p.bad
                style = style if self.chosen in (None, index) else p.faint
                line.add(_LEVELS[level] * (cells - gap) + " " * gap, style, click=("bin", index))
            lines.append(line)
        axis = Line(p).gap(side + 1)
        step = max(1, 10 // cells + 1)
        for index, (low, _, _) in enumerate(self.bins):
            selected, text = index == self.chosen, number(round(low, 6))
            if selected or (index % step == 0 and (self.chosen is None or abs(index - self.chosen) >= step)):
                axis.to(side + 1 + index * cells)
                axis.add(f"▲{text}" if selected else text, p.accent if selected else p.muted, click=("bin", index))
        lines.append(axis.right(Line(p).add(self.what, p.muted), width))
        return lines[-height:]


class Preview(Pane):
    """Facts, route, prompt and answer of one row."""

    name = title = "preview"
    row: TrajectoryRow | None = None

    def put(self, row: TrajectoryRow | None) -> None:
        if row != self.row:
            self.row = row
            self.changed(keep_scroll=False)

    def build(self, width: int, height: int) -> list[Line]:
        p, row = self.palette, self.row
        if row is None:
            return []
        lines = [Line(p).add(f"{row.n} ", p.title).add(row.id, p.faint, cells=max(1, width - len(str(row.n)) - 1))]
        line = Line(p) if row.correct is None else Line(p).add(f"{mark(row.correct)} ", p.outcome(row.correct))
        line.add("reward ", p.muted).add(fixed(row.reward), p.strong)
        lines.append(line.add("  A ", p.muted).add(fixed(row.advantage, signed=True), p.sign(row.advantage)))
        turns = f"{whole(row.turns, 6)} turn{'' if row.turns == 1 else 's'}"
        facts = f"step {number(row.step)} · group {row.group} · rollout {row.rollout} · {turns}"
        facts += "" if row.tokens is None else f" · {count(row.tokens, 'token')}"
        facts += f" · {row.split}" if row.split else ""
        facts += f" · ended by {row.stop_reason}" if row.stop_reason else ""
        lines += wrapped(p, facts, width, p.muted)
        if row.penalties:
            lines.append(Line(p).add(f"✗ {row.penalties} penalt{'y' if row.penalties == 1 else 'ies'}", p.warn))
        lines.append(Line(p))
        if row.words is None:
            for index, action in enumerate(row.actions[:60]):
                lines.append(Line(p).add(f"{index + 1:>3} ", p.faint).add(action, p.accent, cells=max(1, width - 4)))
            lines.append(Line(p))
        lines += wrapped(p, row.prompt, width, p.text, 2000)
        if row.answer is not None:
            lines.append(Line(p))
            sign = "" if row.correct is None else f"{mark(row.correct)} "
            lines += wrapped(p, f"{sign}{row.answer}", width, p.outcome(row.correct) if sign else p.text, 2000)
        return lines

"""The row of a list under the cursor, whole."""

from __future__ import annotations

from ....engine.runs.types import TrajectoryRow
from ...format import fixed, mark, number, whole
from .line import Line, wrapped
from .pane import Pane


class Preview(Pane):
    """Facts, route, prompt and answer of one row."""

    title = "preview"

    def __init__(self) -> None:
        super().__init__("preview")
        self.row: TrajectoryRow | None = None

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
        facts += "" if row.tokens is None else f" · {row.tokens} tokens"
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

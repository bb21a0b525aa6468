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
        """Show a row."""
        if row != self.row:
            self.row = row
            self.changed(keep_scroll=False)

    def build(self, width: int, height: int) -> list[Line]:
        """Facts, route, prompt, answer."""
        p, row = self.palette, self.row
        if row is None:
            return []
        lines = [Line(p).add(f"{row.n} ", p.title).add(row.id, p.faint, cells=max(1, width - len(str(row.n)) - 1))]
        line = (
            Line(p)
            .add(mark(row.correct), p.outcome(row.correct))
            .add(" reward ", p.muted)
            .add(fixed(row.reward), p.strong)
        )
        lines.append(line.add("  A ", p.muted).add(fixed(row.advantage, signed=True), p.sign(row.advantage)))
        facts = f"step {number(row.step)} · group {row.group} · rollout {row.rollout} · {whole(row.turns, 6)} turns"
        facts += "" if row.tokens is None else f" · {row.tokens} tokens"
        facts += f" · {row.split}" if row.split else ""
        facts += f" · ended by {row.stop_reason}" if row.stop_reason else ""
        lines += wrapped(p, facts, width, p.muted)
        if row.penalties:
            lines.append(Line(p).add(f"✗ {row.penalties} penalt{'y' if row.penalties == 1 else 'ies'}", p.warn))
        lines.append(Line(p))
        for index, action in enumerate(row.actions[:60]):
            lines.append(Line(p).add(f"{index + 1:>3} ", p.faint).add(action, p.accent, cells=max(1, width - 4)))
        lines.append(Line(p))
        lines += wrapped(p, row.prompt, width, p.text, 2000)
        if row.answer is not None:
            lines.append(Line(p))
            lines += wrapped(p, f"{mark(row.correct)} {row.answer}", width, p.outcome(row.correct), 2000)
        return lines

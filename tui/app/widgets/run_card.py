"""The run under the cursor of the list: what it is, how it ended, and what to do with it."""

from __future__ import annotations

from ....engine.runs.types import RunInfo
from ...format import ago, duration, percent
from ...status import status_sign, status_style
from ...text import wrap
from .line import Line
from .pane import Pane


class RunCard(Pane):
    """Facts of one run from its status files alone."""

    title = "run"

    def __init__(self, name: str = "card") -> None:
        super().__init__(name)
        self.info: RunInfo | None = None

    def put(self, info: RunInfo | None) -> None:
        """Show a run."""
        if info != self.info:
            self.info = info
            self.changed(keep_scroll=False)

    def build(self, width: int, height: int) -> list[Line]:
        """Status first, then facts, then the next thing to do."""
        p, info = self.palette, self.info
        if info is None:
            return []
        now = self.app.clock()
        line = Line(p).add(f"{status_sign(info.status)} {info.status}", status_style(p, info.status))
        end = info.ended or now
        if info.created:
            line.add(f"  after {duration(end - info.created)}", p.muted)
        if info.ended:
            line.add(f", {ago(now - info.ended)} ago", p.muted)
        lines = [line]
        if info.error:
            lines += [Line(p).add(t, p.bad) for t in wrap(info.error, width, 600)]
        facts = (
            ("name", info.name),
            ("mode", info.mode),
            ("task", info.environment),
            ("model", info.model),
            ("seed", info.facts.get("seed", "")),
            ("device", info.facts.get("device", "")),
            ("folder", info.path),
        )
        for name, value in facts:
            if value not in ("", None):
                for i, text in enumerate(wrap(str(value), max(8, width - 9), 400)):
                    lines.append(Line(p).add(name if i == 0 else "", p.faint, cells=8).gap().add(text, p.text))
        summary = info.facts.get("summary")
        for key, title in (("success/eval_greedy", "greedy"), ("success/eval_sampled", "sampled")):
            known = summary.get(key) if isinstance(summary, dict) else None
            if isinstance(known, dict) and isinstance(known.get("last"), (int, float)):
                line = Line(p).add(title, p.faint, cells=8).gap().add(percent(known["last"]), p.strong)
                lines.append(line.add(" on held-out tasks", p.muted))
        if info.status in ("crashed", "stopped"):
            lines += [Line(p), Line(p).add(info.resume_command, p.accent).add("  goes on", p.muted)]
        return lines

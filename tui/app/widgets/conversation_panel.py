"""The whole conversation in one scroll: the prompt, every step, the answer."""

from __future__ import annotations

from collections.abc import Sequence

from ....engine.runs.types import TrajectoryRecord
from ...text import FIELD_LIMIT
from .line import Line, Lines
from .pane import Pane
from .step_lines import StepLines, call_text

_CHARACTERS = 200_000
"""About how much text is laid out at most; where there is more, each field is cut visibly and equally."""


class ConversationPanel(Pane):
    """All steps under each other; the view scrolls to the step that is open."""

    title = "conversation"

    def __init__(self, name: str = "conversation") -> None:
        super().__init__(name)
        self.record: TrajectoryRecord | None = None
        self.step = 0
        self.find = ""
        self._starts: list[int] = []

    def put(self, record: TrajectoryRecord | None, step: int) -> None:
        """The open trajectory, and the step to scroll to. Nothing is laid out again when only the step is another."""
        same = record is self.record and self._built is not None
        self.record, self.step = record, step
        steps = record.trajectory.steps if record is not None else ()
        self.title = f"conversation · step {step + 1} of {len(steps)}" if steps else "conversation"
        if not same:
            self.changed(keep_scroll=False)
        if self.shown and self.lines and step < len(self._starts):
            self.scroll_line_to(self._starts[step])

    def on_placed(self) -> None:
        """At another size the step is elsewhere."""
        if self.lines and self.step < len(self._starts):
            self.top = max(0, min(self._starts[self.step], self.overflow))

    def build(self, width: int, height: int) -> Sequence[Line]:
        """The lines, and where each step begins."""
        p = self.palette
        self._starts = []
        if self.record is None:
            return []
        trajectory = self.record.trajectory
        fields = 2 * len(trajectory.steps) + 2
        lay = StepLines(p, width, self.find, limit=max(200, min(FIELD_LIMIT, _CHARACTERS // fields)))
        lines = lay.prompt(trajectory, lay.limit, task=True)
        for index, step in enumerate(trajectory.steps):
            self._starts.append(len(lines) if index else 0)
            head = Line(p).add(f"step {index + 1} ", p.title).add(call_text(step), p.muted)
            head = head.cropped(max(1, width - 2)).gap()
            lines.append(head.add("─" * max(0, width - head.width), p.border))
            lines += lay.step(step)
        return Lines(lines + lay.end(trajectory))

"""The whole conversation in one scroll: the prompt, every step, the answer."""

from __future__ import annotations

from collections.abc import Sequence

from ....engine.runs.types import TrajectoryRecord
from ...text import FIELD_LIMIT
from ..rollout_fields import Field, call_text, end_fields, prompt_fields, step_fields
from ..rollout_search import Match
from .line import Later, Line, Lines
from .pane import Pane
from .step_lines import StepLines, sought
from .step_panel import ended

_CHARACTERS = 200_000
"""About how much text is laid out at most; where there is more, each field is cut visibly and equally."""


class ConversationPanel(Pane):
    """All steps under each other; the view scrolls to the step that is open."""

    title = "conversation"

    def __init__(self) -> None:
        super().__init__("conversation")
        self.record: TrajectoryRecord | None = None
        self.step = 0
        self.find: Sequence[str] = ()
        self.match: Match | None = None
        self._starts: list[int] = []
        self._match_line: int | None = None

    def put(self, record: TrajectoryRecord | None, step: int, match: Match | None = None) -> None:
        """The open trajectory, and the step or match to scroll to. Nothing is laid out again for another step."""
        same = record is self.record and match == self.match and self._built is not None
        self.record, self.step, self.match = record, step, match
        steps = record.trajectory.steps if record is not None else ()
        self.title = f"conversation · step {step + 1} of {len(steps)}" if steps else "conversation"
        if not same:
            self.changed(keep_scroll=False)
        self._reveal()

    def on_placed(self) -> None:
        """At another size the step is elsewhere."""
        self._reveal()

    def _reveal(self) -> None:
        if not self.shown or not self.lines:
            return
        if self._match_line is not None:
            self.scroll_line_to(self._match_line - self.size.height // 3)
        elif self.step < len(self._starts):
            self.scroll_line_to(self._starts[self.step])

    def build(self, width: int, height: int) -> Sequence[Line]:
        """The lines, and where each step begins."""
        p = self.palette
        self._starts, self._match_line = [], None
        if self.record is None:
            return []
        trajectory = self.record.trajectory
        fields = 2 * len(trajectory.steps) + 2
        lay = StepLines(p, width, self.find, limit=max(200, min(FIELD_LIMIT, _CHARACTERS // fields)))
        place = sought(trajectory, self.match)
        lines: list[Line | Later] = []

        def put(fields: Sequence[Field]) -> None:
            if place is not None:
                place.above = len(lines)
            lines.extend(lay.fields(fields, place))

        put(prompt_fields(trajectory, lay.limit, task=True))
        for index, step in enumerate(trajectory.steps):
            self._starts.append(len(lines) if index else 0)
            head = Line(p).add(f"step {index + 1} ", p.title).add(call_text(step), p.muted)
            head = head.cropped(max(1, width - 2)).gap()
            lines.append(head.add("─" * max(0, width - head.width), p.border))
            put(step_fields(step))
            lines += lay.notes(step)
        put(end_fields(trajectory))
        self._match_line = place.line if place is not None else None
        return Lines(lines + ended(trajectory, p))

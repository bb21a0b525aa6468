"""One step of a trajectory: what the agent thought and did, and what the environment answered."""

from __future__ import annotations

from collections.abc import Sequence

from ....engine.runs.types import Trajectory, TrajectoryRecord
from ...text import FIELD_LIMIT
from ..rollout_fields import Field, call_text, end_fields, prompt_fields, step_fields
from ..rollout_search import Match
from ..theme import Palette
from .line import Later, Line, Lines, wrapped
from .pane import Pane
from .step_lines import StepLines, sought


class StepPanel(Pane):
    """Text of a step, wrapped, with what was searched for marked; the view goes to the match that is chosen."""

    title = "step"

    def __init__(self) -> None:
        super().__init__("step")
        self.record: TrajectoryRecord | None = None
        self.step = 0
        self.find: Sequence[str] = ()
        self.match: Match | None = None
        self.whole_prompt = False
        self.image_note = ""
        self.note = ""
        """What a person said of the trajectory."""
        self.problem = ""
        self._match_line: int | None = None

    def put(self, record: TrajectoryRecord | None, step: int, problem: str = "", match: Match | None = None) -> None:
        """The open trajectory and which of its steps; `problem` says what cannot be read."""
        self.record, self.step, self.problem, self.match = record, step, problem, match
        self.title = self._heading()
        self.changed(keep_scroll=False)
        if match is not None:
            self._reveal()

    def on_placed(self) -> None:
        """At another size the match is elsewhere."""
        if self.match is not None:
            self._reveal()

    def _reveal(self) -> None:
        if self.shown and self.lines and self._match_line is not None:
            self.scroll_line_to(self._match_line - self.size.height // 3)

    def _heading(self) -> str:
        """`step 3/5  GET_PROPERTIES(mask=7)`, for the frame's line."""
        if self.record is None:
            return "cannot be read" if self.problem else "reading…"
        steps = self.record.trajectory.steps
        if not steps:
            return "no steps"
        return f"step {self.step + 1}/{len(steps)}  {call_text(steps[min(self.step, len(steps) - 1)])}"

    def build(self, width: int, height: int) -> Sequence[Line]:
        """Prompt, thought, action, observation; the answer after the last step."""
        p = self.palette
        self._match_line = None
        lines: list[Line | Later] = []
        lines += wrapped(p, self.problem, width, p.bad)
        lines += wrapped(p, f"✎ {self.note}", width, p.accent) if self.note else []
        if self.record is not None:
            self._lay(lines, self.record.trajectory, StepLines(p, width, self.find), height)
        return Lines(lines)

    def _lay(self, lines: list[Line | Later], trajectory: Trajectory, lay: StepLines, height: int) -> None:
        p, steps = self.palette, trajectory.steps
        place = sought(trajectory, self.match)
        if place is not None:
            place.above = len(lines)
        if self.whole_prompt or self.step == 0 or height >= 12 or not steps:
            limit = FIELD_LIMIT if self.whole_prompt else 600 if self.step == 0 else 240
            lines += lay.fields(prompt_fields(trajectory, limit, task=self.whole_prompt), place)
        if not steps:
            lines.append(Line(p).add("The agent took no step.", p.warn))
            lines += lay.fields([Field("error", trajectory.error, "bad")] if trajectory.error else [])
            return
        at = min(self.step, len(steps) - 1)
        lines += lay.fields(step_fields(steps[at]), place)
        notes = lay.notes(steps[at], self.image_note)
        lines += notes
        if at == len(steps) - 1:
            if place is not None:
                place.above += len(notes)
            lines += lay.fields(end_fields(trajectory), place) + ended(trajectory, p)
        self._match_line = place.line if place is not None else None


def ended(trajectory: Trajectory, palette: Palette) -> list[Line | Later]:
    """What ended a rollout that has neither an answer nor anything to compare one with."""
    silent = trajectory.answer is None and trajectory.expected is None and trajectory.error is None
    if not silent or trajectory.stop_reason in ("answer", ""):
        return []
    return [Line(palette).add(f"ended by {trajectory.stop_reason}", palette.muted)]

"""One step of a trajectory: what the agent thought and did, and what the environment answered."""

from __future__ import annotations

from collections.abc import Sequence

from ....engine.runs.types import Trajectory, TrajectoryRecord
from ...text import FIELD_LIMIT, wrap
from .line import Later, Line, Lines
from .pane import Pane
from .step_lines import StepLines, call_text


class StepPanel(Pane):
    """Text of a step, wrapped, with what was searched for marked."""

    title = "step"

    def __init__(self, name: str = "step") -> None:
        super().__init__(name)
        self.record: TrajectoryRecord | None = None
        self.step = 0
        self.find = ""
        self.whole_prompt = False
        self.image_note = ""
        self.problem = ""

    def put(self, record: TrajectoryRecord | None, step: int, problem: str = "") -> None:
        """The open trajectory and which of its steps; `problem` says what cannot be read."""
        self.record, self.step, self.problem = record, step, problem
        self.title = self._heading()
        self.changed(keep_scroll=False)

    def _heading(self) -> str:
        """`step 3/5  GET_PROPERTIES(mask=7)`, for the frame's line."""
        if self.record is None:
            return "cannot be read"
        steps = self.record.trajectory.steps
        if not steps:
            return "no steps"
        return f"step {self.step + 1}/{len(steps)}  {call_text(steps[min(self.step, len(steps) - 1)])}"

    def build(self, width: int, height: int) -> Sequence[Line]:
        """Prompt, thought, action, observation; the answer after the last step."""
        p = self.palette
        lines: list[Line | Later] = []
        lines += [Line(p).add(t, p.bad) for t in wrap(self.problem, width)] if self.problem else []
        if self.record is not None:
            lines += self._trajectory(self.record.trajectory, StepLines(p, width, self.find), height)
        return Lines(lines)

    def _trajectory(self, trajectory: Trajectory, lay: StepLines, height: int) -> list[Line | Later]:
        p = self.palette
        lines: list[Line | Later] = []
        if self.whole_prompt or self.step == 0 or height >= 12 or not trajectory.steps:
            limit = FIELD_LIMIT if self.whole_prompt else 600 if self.step == 0 else 240
            lines += lay.prompt(trajectory, limit, task=self.whole_prompt)
        if not trajectory.steps:
            lines.append(Line(p).add("The agent took no step.", p.warn))
            return lines + (lay.field("error", trajectory.error, p.bad) if trajectory.error else [])
        at = min(self.step, len(trajectory.steps) - 1)
        lines += lay.step(trajectory.steps[at], self.image_note)
        return lines + (lay.end(trajectory) if at == len(trajectory.steps) - 1 else [])

"""The outline of a rollout's steps with its keys, and keys for the whole rollout: comparison, note, export."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from ....engine.runs.notes import Note
from ....engine.runs.search.query import Query
from ....engine.runs.types import RunInfo
from ...format import count, fixed, whole
from ...plain import Whole, trajectory_data
from ..data import Reads
from ..destinations import Branching, Diff, Groups, SideBySide
from ..outline import FILTER_HINT, Entry, OutlineOf
from ..printed import markdown, whole_lines
from ..widgets.pane import Line
from ..widgets.prompt_bar import ask
from ..widgets.text_layout import Flow, FlowPane, FlowPart
from .among_rollouts import AmongRollouts


class RolloutKeys(AmongRollouts):
    """Compares, annotates and exports the open rollout."""

    @property
    def n(self) -> int:
        return self.cursor.n

    def action_diff(self) -> None:
        if self.cursor.record is not None:
            self.shell.open(Diff(self.reads.path, self.n))

    def action_over_steps(self) -> None:
        if self.cursor.record is not None:
            self.shell.open(Groups.of_prompt(self.reads.path, self.cursor.record.trajectory.prompt_id, self.n))

    def action_side_by_side(self) -> None:
        if self.n:
            self.shell.open(SideBySide(self.reads.path, self.n))

    def action_branch(self) -> None:
        if self.cursor.record is not None and self.cursor.steps:
            from ....engine.evaluation.branch import branch_config, start_branch

            self.say("Starting a process that continues from this step…")
            n, step = self.n, self.cursor.step + 1
            self.in_background(lambda: start_branch(branch_config(self.reads.path, n, step)), self._show_branch)

    def _show_branch(self, run: RunInfo) -> None:
        if self.app.screen is self:
            self.app.clear_notifications()
            self.shell.open(Branching(Path(run.path)))

    def action_note(self) -> Awaitable[None] | None:
        record = self.cursor.record
        if record is None:
            return
        id_ = record.trajectory.id
        note = self.note()
        hint = "#words are labels: filter with label:NAME or note:WORD · an empty text removes it"

        def put(text: str) -> None:
            try:
                self.reads.now.notes.put(id_, text)
            except OSError as error:
                self.say(f"The note cannot be written: {error.strerror}.", "error")
            self.show_rollout()

        return ask(self, "Note on this trajectory", note.text if note is not None else "", put, hint=hint)

    def note(self) -> Note | None:
        record = self.cursor.record
        return None if record is None else self.reads.now.notes.read().get(record.trajectory.id)

    def whole(self) -> Whole | None:
        whole = self.cursor.opened.whole
        return None if whole is None else replace(whole, note=self.note())

    def shown_text(self) -> str:
        whole = self.whole()
        return "\n".join(whole_lines(whole)) if whole is not None else self.cursor.opened.problem

    def shown_name(self) -> str:
        return f"{self.n}.txt"

    def action_export_markdown(self) -> None:
        record, n = self.cursor.record, self.n
        if record is not None:
            self.export(self.reads.path, f"trajectory-{n}.md", lambda: markdown(record))

    def action_export(self) -> None:
        whole = self.whole()
        if whole is not None:
            name, data = f"trajectory-{whole.n}.json", trajectory_data(whole)
            self.export(self.reads.path, name, lambda: json.dumps(data, indent=1, default=str))


class OutlinePanel(FlowPane):
    """Number, sign, call, size, reward or advantage of each step. Further calls are branches."""

    name = title = "steps"
    of = OutlineOf()
    step = 0

    def put(self, outline: OutlineOf, step: int) -> None:
        same = outline is self.of and self._built is not None
        before, self.of, self.step = self.step, outline, step
        self.title = "steps"
        if outline.filter:
            self.title = f"{len(outline.listed)} of {count(len(outline.entries), 'step')} · {outline.filter}"
        if not same:
            self.changed(keep_scroll=False)
        elif before != step:
            self.lay_out_again(*(part for part in self.flow.parts if part.key[0] in (before, step)))
        self.on_placed()

    def on_placed(self) -> None:
        """Show the open step."""
        if not self.shown:
            return
        flow, height = self.flow, self.size.height
        index = next((i for i, part in enumerate(flow.parts) if part.key[0] >= self.step), None)
        if index is None:
            return
        line, end = flow.starts[index], flow.starts[index + 1]
        if not self.top <= line or end > self.top + height:
            self.scroll_line_to(line - height // 3)

    def build(self, width: int, height: int) -> Flow:
        digits = len(str(len(self.of.entries)))
        parts = []
        for step in self.of.listed:
            entry = self.of.entries[step]
            parts.append(FlowPart(partial(self._lines, step, entry, digits, width), entry.rows, (step,)))
        if not parts and self.of.filter:
            parts.append(
                FlowPart([Line(self.palette).add("no step matches", self.palette.faint, cells=width)], key=(-1,))
            )
        return Flow(parts)

    def _lines(self, step: int, entry: Entry, digits: int, width: int) -> list[Line]:
        p, selected = self.palette, step == self.step
        right = self._numbers(entry, width)
        lines = []
        for index, (worked, call) in enumerate(entry.branches):
            line = Line(p).add("▸" if selected and not index else " ", p.accent)
            last = index == len(entry.branches) - 1
            number = str(step + 1) if not index else "└" if last else "├"
            line.add(number, p.text if selected else p.faint, cells=digits + 1, align=">").gap()
            line.add({True: "✓", False: "✗", None: "·"}[worked], p.outcome(worked)).gap()
            room = width - line.width - (right.width + 1 if not index and right.width else 0)
            line.add(call.fitted(room), p.strong if selected else p.text, cells=max(1, room))
            if not index:
                line.right(right, width)
            line.hits = [(0, width, ("step", step))]
            lines.append(line)
        return lines

    def _numbers(self, entry: Entry, width: int) -> Line:
        p, line = self.palette, Line(self.palette)
        if width >= 34:
            line.add(whole(entry.size, 5), p.faint, cells=5, align=">")
        if entry.penalised:
            line.add(" ✗", p.bad)
        value = entry.advantage if entry.reward is None else entry.reward.total
        if value is not None:
            line.add("" if entry.reward is not None else " A", p.faint)
            line.add(fixed(value, signed=True), p.sign(value), cells=6, align=">")
        return line


LONG = 500
"""Tokens from which a thought counts as long."""


class OutlineKeys(AmongRollouts):
    """Moves by step, failed call, tool and long thought, and filters steps."""

    def __init__(self, reads: Reads, query: Query, find: tuple[str, ...] = ()) -> None:
        super().__init__(reads, query, find)
        self.outline = OutlineOf()
        self.steps = OutlinePanel()

    @property
    def step(self) -> int:
        return self.cursor.step

    def action_step(self, by: int) -> None:
        if not self.outline.filter:
            self.go_to_step(self.step + by)
        elif later := [step for step in self.outline.listed if (step > self.step if by > 0 else step < self.step)]:
            self.go_to_step(later[0] if by > 0 else later[-1])

    def action_first(self) -> None:
        if self.step > 0:
            self.go_to_step(0)
        else:
            super().action_first()

    def action_last(self) -> None:
        if self.step < len(self.cursor.steps) - 1:
            self.go_to_step(len(self.cursor.steps) - 1)
        else:
            super().action_last()

    def go_to_step(self, step: int) -> None:
        if self.cursor.go_to(step):
            self.show_rollout()

    def action_next_penalty(self) -> None:
        breakdown = self.cursor.record.breakdown if self.cursor.record is not None else None
        hit = {s.step for s in breakdown.steps if s.penalties} if breakdown is not None else set()
        self._go_where(1, lambda entry: entry.step.index in hit, "No step of this trajectory was penalised.")

    def gone_to(self, text: str) -> bool:
        if not (text.isdecimal() and len(text) < 9 and 0 < int(text) <= len(self.cursor.steps)):
            return False
        self.go_to_step(int(text) - 1)
        return True

    def action_failed(self, by: int) -> None:
        self._go_where(by, lambda entry: entry.failed, "No call of this trajectory failed.")

    def action_same_tool(self, by: int) -> None:
        if self.outline.entries:
            self._go_where(by, self.outline.same_tool(self.step), "No other step calls this tool.")

    def action_thought(self) -> None:
        self._go_where(1, lambda entry: entry.thought > LONG, f"No step has a thought of more than {LONG} tokens.")

    def _go_where(self, by: int, holds: Callable[[Entry], bool], nothing: str) -> None:
        if self.outline.record is None:
            return
        found = self.outline.beside(self.step, by, holds)
        if found is None:
            self.say(nothing)
        else:
            self.go_to_step(found)

    def action_filter(self) -> Awaitable[None] | None:
        if self.outline.record is None:
            return

        def put(text: str) -> str:
            self.outline = replace(self.outline, filter=text)
            self.steps.put(self.outline, self.step)
            return "" if self.outline.listed else "no step matches"

        def done(text: str) -> None:
            put(text)
            listed = self.outline.listed
            if listed and self.step not in listed:
                self.go_to_step(next((step for step in listed if step > self.step), listed[0]))

        return ask(self, "Steps", self.outline.filter, done, check=put, hint=FILTER_HINT)

"""Keys that go from step to step of a rollout, by the outline of its steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ....engine.runs.search.query import Query
from ..data import Reads
from ..outline import FILTER_HINT, Entry, OutlineOf
from ..widgets.outline_panel import OutlinePanel
from ..widgets.prompt_bar import ask
from .among_rollouts import AmongRollouts

LONG = 500
"""Tokens from which a thought is a long one."""


class OutlineKeys(AmongRollouts):
    """Moves by step, failed call, tool and long thought, and filters steps."""

    def __init__(self, reads: Reads, query: Query, find: tuple[str, ...] = ()) -> None:
        super().__init__(reads, query, find)
        self.outline: OutlineOf | None = None
        self.steps = OutlinePanel()

    @property
    def step(self) -> int:
        return self.cursor.step

    def action_step(self, by: int) -> None:
        listed = self.outline.listed if self.outline is not None and self.outline.filter else None
        if listed is None:
            self.go_to_step(self.step + by)
        elif later := [at for at in listed if (at > self.step if by > 0 else at < self.step)]:
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
        if self.cursor.next_penalised():
            self.show_rollout()
        elif self.cursor.record is not None:
            self.say("No step of this trajectory was penalised.")

    def gone_to(self, text: str) -> bool:
        if not (text.isdecimal() and len(text) < 9 and 0 < int(text) <= len(self.cursor.steps)):
            return False
        self.go_to_step(int(text) - 1)
        return True

    def action_failed(self, by: int) -> None:
        self._go_where(by, lambda entry: entry.failed, "No call of this trajectory failed.")

    def action_same_tool(self, by: int) -> None:
        if self.outline is not None and self.outline.entries:
            self._go_where(by, self.outline.same_tool(self.step), "No other step calls this tool.")

    def action_thought(self) -> None:
        self._go_where(1, lambda entry: entry.thought > LONG, f"No step has a thought of more than {LONG} tokens.")

    def _go_where(self, by: int, holds: Callable[[Entry], bool], nothing: str) -> None:
        if self.outline is None:
            return
        found = self.outline.beside(self.step, by, holds)
        if found is None or (found == self.step and by and not holds(self.outline.entries[found])):
            self.say(nothing)
        else:
            self.go_to_step(found)

    def action_filter(self) -> Awaitable[None] | None:
        if (outline := self.outline) is None:
            return

        def put(text: str) -> str:
            outline.filter = text
            self.steps.put(OutlineOf(outline.record, text), self.step)
            return "" if not text or outline.listed else "no step matches"

        def done(text: str) -> None:
            put(text)
            listed = outline.listed
            if text and listed and self.step not in listed:
                self.go_to_step(next((at for at in listed if at > self.step), listed[0]))
            self.show_rollout()

        return ask(self, "Steps", outline.filter, done, check=put, hint=FILTER_HINT)

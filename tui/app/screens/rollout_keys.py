"""Keys for the open rollout as a whole: comparison, note, export."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

from ....configs.errors import GrpoTuiError
from ....engine.runs.notes import Note
from ...advantage import formula_of, recomputed
from ...export import export_trajectory, write
from ...plain import Whole
from ..destinations import Branching, Diff
from ..printed import markdown, whole_lines
from ..widgets.prompt_bar import ask
from .among_rollouts import AmongRollouts


class RolloutKeys(AmongRollouts):
    """Compares, annotates and exports the open rollout."""

    @property
    def n(self) -> int:
        return self.cursor.n

    def action_diff(self) -> None:
        if self.cursor.record is not None:
            self.shell.open(Diff(self.reads.path, self.n))

    def action_branch(self) -> None:
        if self.cursor.record is not None and self.cursor.steps:
            self.say("Starting a process that continues from this step…")
            self.run_worker(self._branch(self.n, self.cursor.step + 1), group="branch", exclusive=True)

    async def _branch(self, n: int, step: int) -> None:
        from ....engine.evaluation.branch import branch_config, start_branch

        try:
            run = await asyncio.to_thread(lambda: start_branch(branch_config(self.reads.path, n, step)))
        except (GrpoTuiError, LookupError) as problem:
            self.say(str(problem), "error")
            return
        if self.app.screen is self:
            self.app.clear_notifications()
            self.shell.open(Branching(Path(run.path)))

    def action_note(self) -> Awaitable[None] | None:
        record = self.cursor.record
        if record is None:
            return
        id_ = record.trajectory.id
        note = self.note()
        hint = "#words are labels: filter with label:NAME or note:WORD · an empty text takes it back"

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

    def _whole(self) -> Whole | None:
        opened = self.cursor.opened
        if opened.record is None:
            return None
        formula, other = formula_of(opened.record, opened.group), recomputed(opened.record, opened.group)
        return Whole(opened.n, opened.record, opened.uses, formula, other, self.note())

    def shown_text(self) -> str:
        whole = self._whole()
        return "\n".join(whole_lines(whole)) if whole is not None else self.cursor.opened.problem

    def shown_name(self) -> str:
        return f"{self.n}.txt"

    def action_export_markdown(self) -> None:
        record, n = self.cursor.record, self.n
        if record is not None:
            self.export(lambda: write(self.reads.path, f"trajectory-{n}.md", markdown(record)))

    def action_export(self) -> None:
        whole = self._whole()
        if whole is not None:
            self.export(lambda: export_trajectory(self.reads.path, whole))

"""What a screen shows, elsewhere: in the pager, in the editor, on the clipboard."""

from __future__ import annotations

import asyncio

from ...export import open_outside
from ..clipboard import copy
from .base import AppScreen


class ShownElsewhere(AppScreen):
    """A screen whose content also exists as plain text, `shown_text`, under the file name `shown_name`."""

    def shown_text(self) -> str:
        """All of what is shown, as text."""
        raise RuntimeError(f"{type(self).__name__} has no text")

    def shown_name(self) -> str:
        """A file name for it."""
        raise RuntimeError(f"{type(self).__name__} has no name for its text")

    def action_pager(self) -> None:
        """Open it in $PAGER."""
        open_outside(self.app, self.shown_text(), "PAGER", self.shown_name())

    def action_editor(self) -> None:
        """Open it in $EDITOR."""
        open_outside(self.app, self.shown_text(), "EDITOR", self.shown_name())

    def copy(self, text: str, what: str) -> None:
        """Copy a text, and say where it went."""
        self.run_worker(self._copy(text, what), group="copy", exclusive=True)

    async def _copy(self, text: str, what: str) -> None:
        copied = await asyncio.to_thread(copy, text, what)
        if copied.send:
            self.app.copy_to_clipboard(text)
        self.say(copied.message)

"""What a screen shows, in the pager or in the editor."""

from __future__ import annotations

from .base import AppScreen


class PagedScreen(AppScreen):
    """A screen whose content also exists as plain text, `shown_text`, under the file name `shown_name`."""

    def shown_text(self) -> str:
        """All of what is shown, as text."""
        raise RuntimeError(f"{type(self).__name__} has no text")

    def shown_name(self) -> str:
        """A file name for it."""
        raise RuntimeError(f"{type(self).__name__} has no name for its text")

    def action_pager(self) -> None:
        """Open it in $PAGER."""
        self._open("PAGER")

    def action_editor(self) -> None:
        """Open it in $EDITOR."""
        self._open("EDITOR")

    def _open(self, variable: str) -> None:
        from ...export import open_outside  # here: no first paint waits for it

        open_outside(self.app, self.shown_text(), variable, self.shown_name())

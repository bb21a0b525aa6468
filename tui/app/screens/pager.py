"""The content of a screen in the pager or the editor."""

from __future__ import annotations

from .base import AppScreen


class PagedScreen(AppScreen):
    """A screen whose content is also plain text: `shown_text` in a file `shown_name`."""

    def shown_text(self) -> str:
        raise RuntimeError(f"{type(self).__name__} has no text")

    def shown_name(self) -> str:
        raise RuntimeError(f"{type(self).__name__} has no name for its text")

    def action_pager(self) -> None:
        self._open("PAGER")

    def action_editor(self) -> None:
        self._open("EDITOR")

    def _open(self, variable: str) -> None:
        from ...export import open_outside  # here: no first paint waits for it

        open_outside(self.app, self.shown_text(), variable, self.shown_name())

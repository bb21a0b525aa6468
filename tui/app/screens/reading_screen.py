"""A screen around the texts of a rollout, with other panes next to them or, on a small terminal, one at a time."""

from __future__ import annotations

from collections.abc import Callable

from ..widgets.pane import Line
from ..widgets.reading import ReadingPanel
from .base import AppScreen

_WIDE = (100, 14)
"""Minimum columns and rows for group, steps and reward next to the text. Below that, one pane fills the screen."""


def is_wide(width: int, height: int) -> bool:
    """Return whether there is room for several panes."""
    return width >= _WIDE[0] and height >= _WIDE[1]


class ReadingScreen(AppScreen):
    """A screen of texts. Subclasses list their panes in `tabs`, the default one first."""

    tabs: Callable[[], list[str]]
    tab = ""
    """The pane that a small screen shows. Empty for the default one."""

    @property
    def reading(self) -> ReadingPanel:
        raise RuntimeError(f"{type(self).__name__} has no texts")

    def tab_title(self, name: str) -> str:
        return name

    @property
    def usual(self) -> str:
        return self.tabs()[0]

    @property
    def is_wide(self) -> bool:
        return is_wide(*self.frame.size)

    def header(self, width: int) -> tuple[Line, Line]:
        p, line = self.palette, Line(self.palette)
        if not self.is_wide:
            for name in self.tabs():
                selected = name == (self.tab or self.usual)
                title = self.tab_title(name)
                title = title if selected or width >= 70 else title[:4]
                line.add(title, p.key if selected else p.muted, click=f"show_pane('{name}')").gap(2)
        return line, Line(p)

    def action_show_pane(self, name: str) -> None:
        self.tab = self._active = name
        self.frame.replan()

    def action_next_pane(self, by: int) -> None:
        if self.is_wide:
            super().action_next_pane(by)
            return
        tabs, now = self.tabs(), self.tab or self.usual
        self.action_show_pane(tabs[((tabs.index(now) if now in tabs else 0) + by) % len(tabs)])

    def activate(self, name: str) -> None:
        super().activate(name)
        if not self.is_wide and name in self.tabs():
            self.action_show_pane(name)

    def action_open_text(self) -> None:
        if not self.reading.toggle():
            self.say("No text on screen folds.")

    def action_choose_text(self, by: int) -> None:
        self.reading.choose(by)

    def action_open_all(self, opened: bool) -> None:
        self.reading.open_all(opened)

    def action_raw(self) -> None:
        self.reading.toggle_raw()

    def action_prompt(self) -> None:
        self.reading.toggle_prompt()

"""What all screens share: the frame with header and hints, scroll keys, messages, help and back."""

from __future__ import annotations

from typing import Any, ClassVar, cast

from textual.app import ComposeResult
from textual.screen import Screen

from ..bindings import SCREEN_TITLES, hints
from ..destinations import Help
from ..shell import Shell
from ..theme import Palette
from ..widgets.frame import Box, Frame
from ..widgets.line import Line
from ..widgets.pane import Pane


class AppScreen(Screen[Any]):
    """One screen: a frame with panes. Subclasses name their `view`, make `panes` and `plan` the boxes."""

    view: ClassVar[str] = ""
    AUTO_FOCUS = ""

    def __init__(self) -> None:
        super().__init__()
        self.frame: Frame
        self._active = ""

    @property
    def shell(self) -> Shell:
        """The app, as far as screens know it."""
        return cast(Shell, self.app)

    @property
    def palette(self) -> Palette:
        """The styles of the current theme."""
        return self.shell.palette

    def panes(self) -> list[Pane]:
        """The panes of the screen."""
        raise RuntimeError(f"{type(self).__name__} has no panes")

    def plan(self, width: int, height: int) -> list[Box]:
        """Where they go at a size."""
        raise RuntimeError(f"{type(self).__name__} has no plan")

    def header(self, width: int) -> tuple[Line, Line]:
        """Left and right of the first line."""
        return Line(self.palette, SCREEN_TITLES[self.view], self.palette.title), Line(self.palette)

    def compose(self) -> ComposeResult:
        """One frame with the panes."""
        self.frame = Frame(*self.panes(), plan=self.plan, header=self.header, footer=self.footer, status=self.status)
        yield self.frame

    def footer(self, width: int) -> Line:
        """As many hints as fit, in their order."""
        p = self.palette
        line = Line(p)
        for row in hints(self.view):
            label = self.hint_label(row.action, row.label)
            if not label:
                continue
            item = Line(p).add(row.shown, p.key, click=row.action).add(f" {label}", p.muted, click=row.action)
            if line.width + item.width + 3 > width:
                continue
            line.extend(item.gap(3))
        return line

    def hint_label(self, action: str, label: str) -> str:
        """What a hint says a key does now; "" leaves the hint out."""
        return label

    def status(self, width: int) -> Line:
        """What stands at the right of the last line."""
        return Line(self.palette)

    def on_screen_resume(self) -> None:
        """The screen is on top (again)."""

    @property
    def scrolled(self) -> Pane:
        """The pane that takes the scroll keys."""
        shown = [p for p in self.frame.panes.values() if p.shown]
        return next(
            (p for p in shown if p.name == self._active), shown[0] if shown else next(iter(self.frame.panes.values()))
        )

    def activate(self, name: str) -> None:
        """Give the scroll keys to a pane."""
        self._active = name
        for pane in self.frame.panes.values():
            if pane.active != (pane.name == name):
                pane.active = pane.name == name
                pane.changed()
        self.frame.refresh_lines()

    def action_next_pane(self, by: int) -> None:
        """The next pane takes the scroll keys."""
        names = [b.name for b in self.frame.boxes]
        at = names.index(self._active) if self._active in names else -1
        self.activate(names[(at + by) % len(names)])

    def action_scroll(self, by: int) -> None:
        """One line up or down."""
        self.scrolled.scroll_lines(by)

    def action_page(self, by: int) -> None:
        """One page up or down."""
        self.scrolled.scroll_lines(by * max(1, self.scrolled.size.height - 2))

    def action_first(self) -> None:
        """To the top."""
        self.scrolled.scroll_line_to(0)

    def action_last(self) -> None:
        """To the end."""
        self.scrolled.scroll_line_to(10**9)

    def action_help(self) -> None:
        """The keys of this screen."""
        self.shell.open(Help(self.view))

    def action_back(self) -> None:
        """To the screen before; from the first one, to the list of runs."""
        self.shell.go_back()

    def say(self, message: str, severity: str = "information") -> None:
        """A short message in the corner. The text is shown literally."""
        from ...text import line

        self.app.notify(line(message, 300), severity=severity, timeout=4, markup=False)  # type: ignore[arg-type]

    def repaint(self) -> None:
        """Paint everything again, as after a change of theme."""
        for pane in self.frame.panes.values():
            pane.changed()
        self.frame.refresh()

"""The keys of a screen, from the table in `bindings.py`."""

from __future__ import annotations

from rich.style import Style

from ..bindings import EVERYWHERE, HELP, SCREEN_TITLES, helps
from ..widgets.pane import Line, Pane, wrapped
from .base import AppScreen

FILTER_HELP = (
    ("reward<0.2 and penalty:missing_prerequisite", "low reward, and this penalty"),
    ("action:TRACK_OBJECT and step>100", "this action, after step 100"),
    ("not correct and turns>=4", "wrong, with at least four turns"),
    ("(env:visual or split:eval) and advantage<0", "parentheses, or, not"),
)


class HelpPane(Pane):
    """Keys and their effects in two columns."""

    def __init__(self, about: str) -> None:
        super().__init__("help")
        self.about = about

    def build(self, width: int, height: int) -> list[Line]:
        p = self.palette
        rows = helps(self.about)
        lines = [Line(p).add(f"On “{SCREEN_TITLES[self.about]}”", p.title)]
        for everywhere in (False, True):
            if everywhere:
                lines += [Line(p), Line(p).add("Everywhere", p.title)]
            for row in rows:
                if (row.screens == EVERYWHERE) != everywhere:
                    continue
                lines += self._side_by_side(row.shown, p.key, row.help, p.text, width)
        lines += self._side_by_side("ctrl+p", p.key, "Open the command palette: all commands by name", p.text, width)
        lines += [Line(p), Line(p).add("Filters", p.title)]
        for expression, meaning in FILTER_HELP:
            lines += wrapped(p, expression, width, p.accent, after=Line(p).gap(2))
            lines += wrapped(p, meaning, width, p.muted, after=Line(p).gap(6))
        lines += [Line(p), Line(p).add("Signs", p.title)]
        for sign, style, meaning in (
            ("✓ ✗ ·", p.text, "right, wrong, no known answer"),
            ("✗2", p.warn, "penalties in the trajectory"),
            ("A +0.8", p.good, "advantage: above 0 reinforced, below 0 discouraged"),
            ("‹202E› ␛", p.warn, "invisible or control characters, made visible"),
            ("✂", p.warn, "the text is cut; o opens all of it"),
        ):
            lines += self._side_by_side(sign, style, meaning, p.muted, width)
        return lines

    def _side_by_side(self, short: str, style: Style, long: str, long_style: Style, width: int) -> list[Line]:
        p = self.palette
        if width < 36:  # the meaning goes under its key
            return [Line(p).gap(2).add(short, style), *wrapped(p, long, width, long_style, after=Line(p).gap(4))]
        return wrapped(p, long, width - 2, long_style, after=Line(p).gap(2).add(short, style, cells=12))


class HelpScreen(AppScreen):
    """The keys of the screen on which `?` was pressed."""

    view = HELP

    def __init__(self, about: str) -> None:
        super().__init__()
        self.pane = HelpPane(about if about in SCREEN_TITLES and about != HELP else "runs")

    def panes(self) -> list[Pane]:
        return [self.pane]

    def status(self, width: int) -> Line:
        p = self.palette
        below = self.pane.overflow - self.pane.top if self.pane.shown else 0
        return Line(p).add(f"▼ {below} more lines: j, pgdn", p.accent) if below > 0 else Line(p)

    def action_help(self) -> None:
        self.action_back()

"""A screen whose middle is the texts of a rollout, with other panes next to them or, on a small terminal, in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..widgets.frame import Box
from ..widgets.line import Line
from ..widgets.reading import ReadingPanel
from .base import AppScreen

_WIDE = (100, 14)
"""Columns and rows for group, steps and reward next to the text; below them one pane fills the screen."""
_THREE = 144
"""Columns from which rewards of steps have a column of their own."""
_TEXT = 72
"""Columns of the text with both borders, at least."""
_IMAGE_ROOM = 16
"""Rows of the text under which no image is shown."""


def is_wide(width: int, height: int) -> bool:
    """Return whether there is room for several panes."""
    return width >= _WIDE[0] and height >= _WIDE[1]


@dataclass(frozen=True)
class ImageBox:
    """An image: its rows at a width, and whether the user enlarged it."""

    rows_for: Callable[[int], int]
    large: bool


@dataclass(frozen=True)
class Side:
    """Panes next to the text. `group` and `steps` are counts. `reward_rows` gives the height at a width. `of_steps`:
    steps have rewards. `wider`: columns that the user added."""

    group: int
    steps: int
    reward_rows: Callable[[int], int]
    of_steps: bool
    wider: int = 0


def stepper_boxes(width: int, height: int, body: str, image: ImageBox | None, side: Side) -> list[Box]:
    """Place the text right of group, steps and reward. Under 100 columns one pane fills the screen below a line of
    tabs."""
    boxes: list[Box] = []
    x, text = 0, width
    if is_wide(width, height):
        three = side.of_steps and width >= _THREE
        usual = 34 if three else min(46, max(38 if side.of_steps else 32, width * 3 // 10))
        reward = min(56, max(40, width // 4)) if three else 0
        left = max(20, min(usual + side.wider, width + 1 - _TEXT - (reward - 1 if three else 0)))
        x, text = left - 1, width - left + 1
        if three:
            text -= reward - 1
            boxes.append(Box("reward", width - reward, 0, reward, height))
        boxes += _left(left, height, side, stacked=not three)
    middle = height
    if image is not None and middle >= _IMAGE_ROOM:
        rows = max(8, min(image.rows_for(text - 2) + 2, int(middle * (0.68 if image.large else 0.5))))
        boxes.append(Box("image", x, middle - rows, text, rows))
        middle -= rows - 1
    boxes.append(Box(body, x, 0, text, middle))
    return boxes


def _left(width: int, height: int, side: Side, stacked: bool) -> list[Box]:
    group = min(side.group + 4, max(5, height // 3))
    reward = 0
    if stacked:
        most = height - group - min(side.steps + 2, height // 4) if side.of_steps else height // 2
        reward = max(4, min(side.reward_rows(width - 4) + 2, most))
    boxes = [
        Box("group", 0, 0, width, group),
        Box("steps", 0, group - 1, width, height - group - max(0, reward - 1) + 1),
    ]
    if reward:
        boxes.append(Box("reward", 0, height - reward, width, reward))
    return boxes


class ReadingScreen(AppScreen):
    """A screen of texts. Subclasses list their panes in `tabs`, the default one first."""

    def __init__(self) -> None:
        super().__init__()
        self.tab = ""
        """The pane that a small screen shows; empty for the usual one."""

    @property
    def reading(self) -> ReadingPanel:
        raise RuntimeError(f"{type(self).__name__} has no texts")

    def tabs(self) -> list[str]:
        raise RuntimeError(f"{type(self).__name__} has no tabs")

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
                here = name == (self.tab or self.usual)
                title = self.tab_title(name)
                title = title if here or width >= 70 else title[:4]
                line.add(title, p.key if here else p.muted, click=f"show_pane('{name}')").gap(2)
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

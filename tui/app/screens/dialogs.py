"""Dialogs over a screen, as a box around one pane: a yes-or-no question, and the choice of metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen

from ....configs.metric_names import meaning
from ..theme import Palette
from ..widgets.frame import Box, Frame
from ..widgets.pane import Line, Pane, wrapped

Answer = TypeVar("Answer")


class Modal(ModalScreen[Answer]):
    """A dialog that closes only once. Otherwise, later keys would also close the screen below. Subclasses build the
    lines, and return the rows and the hints for a width."""

    build: Callable[[int, int], list[Line]]
    rows: Callable[[int], int]
    hints: Callable[[int], Line]
    frame: Frame

    def __init__(self, widest: int, title: str = "") -> None:
        super().__init__()
        self.pane, self._widest, self._title = Pane("dialog"), widest, title
        self.pane.build = self.build

    @property
    def palette(self) -> Palette:
        return self.pane.palette

    def compose(self) -> ComposeResult:
        self.frame = Frame(
            self.pane,
            plan=lambda width, height: [Box("dialog", 0, 0, width, height)],
            header=lambda width: (Line(self.palette, self._title, self.palette.title), Line(self.palette)),
            footer=self.hints,
            status=lambda width: Line(self.palette),
        )
        self.on_resize()
        yield self.frame

    def on_resize(self) -> None:
        screen = self.app.size
        width = min(self._widest, screen.width - 4 if screen.width >= 40 else screen.width)
        max_height = screen.height - 2 if screen.height >= 10 else screen.height
        self.frame.styles.width = width
        self.frame.styles.height = max(3, min(self.rows(width - 4) + 2, max_height))

    def repaint(self) -> None:
        self.pane.changed()

    def dismiss(self, result: Answer | None = None) -> AwaitComplete:
        return super().dismiss(result) if self.app.screen is self else AwaitComplete.nothing()


class ConfirmDialog(Modal[bool]):
    """A question above its two answers. Dismissed with True for yes. The cursor starts at no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(False)", show=False),
        Binding("j,down,tab,right,l", "move(1)", show=False),
        Binding("k,up,shift+tab,left,h", "move(-1)", show=False),
        Binding("space,enter", "accept", show=False),
    ]

    def __init__(self, text: str, yes: str, no: str = "No, leave it") -> None:
        super().__init__(widest=68)
        self.text, self.answers = text, (yes, no)
        self.cursor = 1
        self.pane.on_placed = self.show_cursor

    def build(self, width: int, height: int) -> list[Line]:
        p = self.palette
        lines = [*wrapped(p, self.text, width, p.text), Line(p)]
        for index, answer in enumerate(self.answers):
            selected = index == self.cursor
            line = Line(p).add("▸ " if selected else "  ", p.accent)
            line.add(answer, p.strong if selected else p.text, cells=max(1, width - line.width))
            line.hits = [(0, width, index)]
            lines.append(line)
        return lines

    def show_cursor(self) -> None:
        pane = self.pane
        line = len(pane.lines) - len(self.answers) + self.cursor
        pane.scroll_line_to(min(max(pane.top, line - pane.size.height + 1), line))

    def rows(self, width: int) -> int:
        return len(self.build(width, 0))

    def hints(self, width: int) -> Line:
        p = self.palette
        line, alone = Line(p), Line(p)
        for key, label in (("enter", "choose"), ("esc", "cancel")):
            line.gap(3 if line.width else 0).add(key, p.key).add(f" {label}", p.muted)
            alone.gap(1 if alone.width else 0).add(key, p.key)
        return line if line.width <= width else alone

    def action_move(self, by: int) -> None:
        self.cursor = (self.cursor + by) % len(self.answers)
        self.pane.changed()
        self.show_cursor()

    def action_accept(self) -> None:
        self.dismiss(self.cursor == 0)

    def on_key(self, event: events.Key) -> None:
        if event.character in ("y", "n"):
            event.stop()
            self.dismiss(event.character == "y")

    def on_pane_hit(self, message: Pane.Hit) -> None:
        self.cursor = message.what
        self.action_accept()


def confirm(screen: Screen, text: str, yes: str, then: Callable[[], None], no: str = "No, leave it") -> None:
    """Ask a question and call `then` on yes."""

    def answered(agreed: bool | None) -> None:
        if agreed:
            then()

    screen.app.push_screen(ConfirmDialog(text, yes, no), answered)


def matching(names: Sequence[str], typed: str) -> list[str]:
    """Return names that contain every typed word. Names with the first word at the start of a part come first."""
    words = typed.casefold().split()
    found = [n for n in names if all(w in n.casefold() for w in words)]
    if not words:
        return found

    def rank(name: str) -> tuple[bool, int]:
        position = name.casefold().find(words[0])
        return (position > 0 and name[position - 1].isalnum(), position)

    return sorted(found, key=rank)


class MetricPicker(Modal[tuple[str, ...] | None]):
    """The typed text, the matching names and a description of the current one. Dismissed with the chosen metrics in
    order, or with None on escape."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", show=False),
        Binding("enter", "accept", show=False),
        Binding("space,tab", "check", show=False),
        Binding("down,ctrl+n", "move(1)", show=False),
        Binding("up,ctrl+p", "move(-1)", show=False),
        Binding("pagedown", "move(10)", show=False),
        Binding("pageup", "move(-10)", show=False),
        Binding("shift+up", "earlier(-1)", show=False),
        Binding("shift+down", "earlier(1)", show=False),
        Binding("backspace", "rub_out", show=False),
        Binding("ctrl+u", "type('')", show=False),
    ]

    def __init__(self, names: Sequence[str], chosen: Sequence[str], title: str = "Metrics of the chart") -> None:
        super().__init__(widest=64, title=title)
        self.names, self.chosen = list(names), list(chosen)
        self.typed = ""
        self.cursor = 0
        self.touched = False
        """Whether the user chose anything by hand. Only then does a typed name join the chosen ones."""

    @property
    def found(self) -> list[str]:
        """Return the choices. If nothing is typed, chosen names come first."""
        if self.typed:
            return matching(self.names, self.typed)
        return [*self.chosen, *(n for n in self.names if n not in self.chosen)]

    def build(self, width: int, height: int) -> list[Line]:
        p = self.palette
        head = Line(p).add("› ", p.accent)
        head.add(self.typed, p.strong, most=max(1, width - 4)).add("▏", p.accent)
        if not self.typed:
            head.offer(Line(p).add(" type a part of a name", p.faint), width)
        lines = [head]
        found = self.found
        shows_meaning = height >= 4
        room = max(1, height - 1 - shows_meaning)
        first = max(0, min(self.cursor - room // 2, len(found) - room))
        for index, name in enumerate(found[first : first + room], first):
            selected = index == self.cursor
            number = self.chosen.index(name) + 1 if name in self.chosen else 0
            line = Line(p).add("▸" if selected else " ", p.accent)
            line.add(str(number) if number else "·", p.key if number else p.faint, cells=3, align=">").gap()
            line.add(name, p.strong if selected or number else p.text, cells=max(1, width - line.width))
            line.hits = [(0, width, index)]
            lines.append(line)
        if shows_meaning and self.cursor < len(found):
            lines.append(Line(p).gap(min(5, width)).add(meaning(found[self.cursor]), p.faint, cells=max(0, width - 5)))
        if not found:
            lines.append(Line(p).add("no metric has this name", p.faint, cells=width))
        return lines

    def rows(self, width: int) -> int:
        return min(len(self.names) + 2, 26)

    def hints(self, width: int) -> Line:
        p = self.palette
        line = Line(p)
        for key, label in (("esc", "cancel"), ("enter", "show"), ("space", "choose"), ("shift+↑↓", "order")):
            line.offer(Line(p).add(key, p.key).add(f" {label}   ", p.muted), width)
        return line

    def on_key(self, event: events.Key) -> None:
        if event.character and event.character.isprintable() and event.character != " ":
            event.stop()
            event.prevent_default()
            self.action_type(self.typed + event.character)

    def action_type(self, text: str) -> None:
        self.typed, self.cursor = text, 0
        self.pane.changed()

    def action_rub_out(self) -> None:
        self.action_type(self.typed[:-1])

    def action_move(self, by: int) -> None:
        self.cursor = max(0, min(self.cursor + by, len(self.found) - 1))
        self.pane.changed()

    def action_check(self) -> None:
        if self.cursor >= len(self.found):
            return
        name = self.found[self.cursor]
        self.touched = True
        if name in self.chosen:
            self.chosen.remove(name)
        else:
            self.chosen.append(name)
        if self.typed:
            self.typed = ""
            self.cursor = self.found.index(name)
        self.pane.changed()

    def action_earlier(self, by: int) -> None:
        name = self.found[self.cursor] if self.cursor < len(self.found) else ""
        if name in self.chosen and not self.typed:
            index = self.chosen.index(name)
            self.cursor = max(0, min(index + by, len(self.chosen) - 1))
            self.chosen.insert(self.cursor, self.chosen.pop(index))
            self.pane.changed()

    def action_accept(self) -> None:
        """Accept the chosen names, or a typed one together with the names chosen by hand."""
        current = self.found[self.cursor : self.cursor + 1]
        if self.typed and current:
            kept = [n for n in self.chosen if n not in current] if self.touched else []
            self.dismiss((*kept, *current))
        else:
            self.dismiss(tuple(self.chosen or current) or None)

    def on_pane_hit(self, message: Pane.Hit) -> None:
        self.cursor = message.what
        self.action_check()

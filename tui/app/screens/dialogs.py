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
from ..widgets.frame import Box, Frame
from ..widgets.line import Line, wrapped
from ..widgets.pane import Pane

Answer = TypeVar("Answer")
_MOST_ROWS = 26


class Modal(ModalScreen[Answer]):
    """A dialog that closes only once. Otherwise, later keys would also close the screen below. Subclasses tell the rows
    and the hints for a width."""

    rows: Callable[[int], int]
    hints: Callable[[int], Line]

    def __init__(self, pane: Pane, widest: int) -> None:
        super().__init__()
        self.frame: Frame
        self._pane, self._widest = pane, widest

    def heading(self) -> Line:
        return Line(self._pane.palette)

    def compose(self) -> ComposeResult:
        self.frame = Frame(
            self._pane,
            plan=lambda width, height: [Box(self._pane.name, 0, 0, width, height)],
            header=lambda width: (self.heading(), Line(self._pane.palette)),
            footer=self.hints,
            status=lambda width: Line(self._pane.palette),
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
        self._pane.changed()

    def dismiss(self, result: Answer | None = None) -> AwaitComplete:
        return super().dismiss(result) if self.app.screen is self else AwaitComplete.nothing()


class QuestionPane(Pane):
    """The question above its two answers."""

    def __init__(self, text: str, answers: tuple[str, str]) -> None:
        super().__init__("question")
        self.text, self.answers = text, answers
        self.cursor = 1

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

    def on_placed(self) -> None:
        line = len(self.lines) - len(self.answers) + self.cursor
        self.scroll_line_to(min(max(self.top, line - self.size.height + 1), line))


class ConfirmDialog(Modal[bool]):
    """Dismissed with True for yes. The cursor starts at no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(False)", show=False),
        Binding("j,down,tab,right,l", "move(1)", show=False),
        Binding("k,up,shift+tab,left,h", "move(-1)", show=False),
        Binding("space,enter", "accept", show=False),
    ]

    def __init__(self, text: str, yes: str, no: str = "No, leave it") -> None:
        self.pane = QuestionPane(text, (yes, no))
        super().__init__(self.pane, widest=68)

    def rows(self, width: int) -> int:
        return len(self.pane.build(width, 0))

    def hints(self, width: int) -> Line:
        p = self.pane.palette
        line, alone = Line(p), Line(p)
        for key, label in (("enter", "choose"), ("esc", "cancel")):
            line.gap(3 if line.width else 0).add(key, p.key).add(f" {label}", p.muted)
            alone.gap(1 if alone.width else 0).add(key, p.key)
        return line if line.width <= width else alone

    def action_move(self, by: int) -> None:
        self.pane.cursor = (self.pane.cursor + by) % len(self.pane.answers)
        self.pane.changed()
        self.pane.on_placed()

    def action_accept(self) -> None:
        self.dismiss(self.pane.cursor == 0)

    def on_key(self, event: events.Key) -> None:
        if event.character in ("y", "n"):
            event.stop()
            self.dismiss(event.character == "y")

    def on_pane_hit(self, message: Pane.Hit) -> None:
        self.pane.cursor = message.what
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


class PickerPane(Pane):
    """The typed text, the matching names and a description of the current one."""

    def __init__(self, names: Sequence[str], chosen: Sequence[str]) -> None:
        super().__init__("picker")
        self.names = list(names)
        self.chosen = list(chosen)
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


class MetricPicker(Modal[tuple[str, ...] | None]):
    """Dismissed with the chosen metrics in order, or with None on escape."""

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
        Binding("ctrl+u", "clear", show=False),
    ]

    def __init__(self, names: Sequence[str], chosen: Sequence[str], title: str = "Metrics of the chart") -> None:
        self.pane, self._title = PickerPane(names, chosen), title
        super().__init__(self.pane, widest=64)

    def rows(self, width: int) -> int:
        return min(len(self.pane.names) + 2, _MOST_ROWS)

    def heading(self) -> Line:
        return Line(self.pane.palette).add(self._title, self.pane.palette.title)

    def hints(self, width: int) -> Line:
        p = self.pane.palette
        line = Line(p)
        for key, label in (("esc", "cancel"), ("enter", "show"), ("space", "choose"), ("shift+↑↓", "order")):
            line.offer(Line(p).add(key, p.key).add(f" {label}   ", p.muted), width)
        return line

    def on_key(self, event: events.Key) -> None:
        if event.character and event.character.isprintable() and event.character != " ":
            event.stop()
            event.prevent_default()
            self._type(self.pane.typed + event.character)

    def _type(self, text: str) -> None:
        self.pane.typed, self.pane.cursor = text, 0
        self.pane.changed()

    def action_rub_out(self) -> None:
        self._type(self.pane.typed[:-1])

    def action_clear(self) -> None:
        self._type("")

    def action_move(self, by: int) -> None:
        self.pane.cursor = max(0, min(self.pane.cursor + by, len(self.pane.found) - 1))
        self.pane.changed()

    def action_check(self) -> None:
        pane = self.pane
        if pane.cursor >= len(pane.found):
            return
        name = pane.found[pane.cursor]
        pane.touched = True
        if name in pane.chosen:
            pane.chosen.remove(name)
        else:
            pane.chosen.append(name)
        if pane.typed:
            self._type("")
            pane.cursor = pane.found.index(name)
        pane.changed()

    def action_earlier(self, by: int) -> None:
        pane = self.pane
        name = pane.found[pane.cursor] if pane.cursor < len(pane.found) else ""
        if name in pane.chosen and not pane.typed:
            index = pane.chosen.index(name)
            to = max(0, min(index + by, len(pane.chosen) - 1))
            pane.chosen.insert(to, pane.chosen.pop(index))
            pane.cursor = to
            pane.changed()

    def action_accept(self) -> None:
        """Accept the chosen names, or a typed one together with the names chosen by hand."""
        pane = self.pane
        if pane.typed and pane.cursor < len(pane.found):
            name = pane.found[pane.cursor]
            kept = [n for n in pane.chosen if n != name] if pane.touched else []
            self.dismiss((*kept, name))
        elif pane.chosen:
            self.dismiss(tuple(pane.chosen))
        else:
            self.dismiss(tuple(pane.found[pane.cursor : pane.cursor + 1]) or None)

    def on_pane_hit(self, message: Pane.Hit) -> None:
        if isinstance(message.what, int):
            self.pane.cursor = message.what
            self.action_check()

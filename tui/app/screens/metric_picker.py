"""Choose metrics by typing parts of their names; they are drawn in the order in which they were chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType

from ....configs.metric_names import meaning
from ..widgets.line import Line
from ..widgets.pane import Pane
from .modal import Modal

_MOST_ROWS = 26


def matching(names: Sequence[str], typed: str) -> list[str]:
    """Return names that hold every typed word. Names with the first word at the start of a part come first."""
    words = typed.casefold().split()
    found = [n for n in names if all(w in n.casefold() for w in words)]
    if not words:
        return found

    def rank(name: str) -> tuple[bool, int]:
        at = name.casefold().find(words[0])
        return (at > 0 and name[at - 1].isalnum(), at)

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
        """Whether anything was chosen by hand: only then a typed name joins the others."""

    @property
    def found(self) -> list[str]:
        """Return the choices. Without a typed text, chosen names come first."""
        if self.typed:
            return matching(self.names, self.typed)
        return [*self.chosen, *(n for n in self.names if n not in self.chosen)]

    def build(self, width: int, height: int) -> list[Line]:
        p = self.palette
        head = Line(p).add("› ", p.accent)
        head.add(self.typed, p.strong, cells=min(len(self.typed), max(1, width - 4))).add("▏", p.accent)
        if not self.typed:
            head.offer(Line(p).add(" type a part of a name", p.faint), width)
        lines = [head]
        found = self.found
        told = height >= 4
        room = max(1, height - 1 - told)
        first = max(0, min(self.cursor - room // 2, len(found) - room))
        for index, name in enumerate(found[first : first + room], first):
            here = index == self.cursor
            at = self.chosen.index(name) + 1 if name in self.chosen else 0
            line = Line(p).add("▸" if here else " ", p.accent)
            line.add(str(at) if at else "·", p.key if at else p.faint, cells=3, align=">").gap()
            line.add(name, p.strong if here or at else p.text, cells=max(1, width - line.width))
            line.hits = [(0, width, index)]
            lines.append(line)
        if told and self.cursor < len(found):
            lines.append(Line(p).gap(min(5, width)).add(meaning(found[self.cursor]), p.faint, cells=max(0, width - 5)))
        if not found:
            lines.append(Line(p).add("no metric has such a name", p.faint, cells=width))
        return lines


class MetricPicker(Modal[tuple[str, ...] | None]):
    """Dismissed with the chosen metrics in order, or None for esc."""

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

    def __init__(self, names: Sequence[str], chosen: Sequence[str]) -> None:
        self.pane = PickerPane(names, chosen)
        super().__init__(self.pane, widest=64)

    def rows(self, width: int) -> int:
        return min(len(self.pane.names) + 2, _MOST_ROWS)

    def heading(self) -> Line:
        return Line(self.pane.palette).add("Metrics of the chart", self.pane.palette.title)

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
            at = pane.chosen.index(name)
            to = max(0, min(at + by, len(pane.chosen) - 1))
            pane.chosen.insert(to, pane.chosen.pop(at))
            pane.cursor = to
            pane.changed()

    def action_accept(self) -> None:
        """Accept the chosen names, or a typed one with the names that were chosen by hand."""
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

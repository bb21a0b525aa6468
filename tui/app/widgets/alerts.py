"""What a detector found, newest first; each alert opens the trajectories that are its evidence."""

from __future__ import annotations

from collections.abc import Sequence

from ....engine.runs.types import Event
from .line import Line
from .pane import Pane

_SIGNS = {"alert": "⚠", "error": "✗", "record": "!", "control": "↳", "phase": "·"}


class Alerts(Pane):
    """One line an alert, with a cursor when the pane is active."""

    title = "Alerts ─ each opens its evidence"

    def __init__(self, name: str = "alerts") -> None:
        super().__init__(name)
        self.events: list[Event] = []
        self.cursor = 0

    def put(self, events: Sequence[Event]) -> None:
        """Alerts, errors and messages, newest first."""
        self.events = list(events)
        self.cursor = min(self.cursor, max(0, len(self.events) - 1))
        self.changed()

    @property
    def current(self) -> Event | None:
        """The alert under the cursor."""
        return self.events[self.cursor] if self.events else None

    def scroll_lines(self, by: int) -> None:
        """Move the cursor."""
        if self.events:
            self.cursor = max(0, min(self.cursor + by, len(self.events) - 1))
            if self.cursor < self.top:
                self.top = self.cursor
            elif self.cursor >= self.top + self.size.height:
                self.top = self.cursor - self.size.height + 1
            self.changed()

    def build(self, width: int, height: int) -> list[Line]:
        """Step, message, and how many trajectories show it."""
        p = self.palette
        lines = []
        for index, event in enumerate(self.events):
            here = self.active and index == self.cursor
            tone = {"alert": p.warn_bold, "error": p.bad_bold, "record": p.bad}.get(event.kind, p.muted)
            ids = event.data.get("trajectories") or ()
            end = f" → {len(ids)} trajector{'y' if len(ids) == 1 else 'ies'}" if ids else ""
            line = Line(p).add("▸" if here else " ", p.accent).add(_SIGNS.get(event.kind, "·") + " ", tone)
            line.add(event.step if event.step else "", p.muted, cells=6)
            room = width - line.width - len(end)
            text = event.message
            line.add(text, p.text if event.kind in ("alert", "error") else p.muted, cells=min(len(text), max(1, room)))
            line.add(end, p.accent)
            line.hits = [(0, width, ("alert", index))]
            lines.append(line)
        return lines or [Line(p).add("✓ ", p.good).add("nothing to report", p.faint)]

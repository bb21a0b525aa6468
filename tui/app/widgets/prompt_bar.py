"""A line to type in, over the bottom of a screen, made when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input, Static

from ...text import line, literal


class PromptBar(Widget):
    """Enter accepts, escape leaves everything as it was. `check` answers what is wrong with a text, or nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", show=False),
        Binding("tab", "complete", show=False, priority=True),
        Binding("up", "earlier(1)", show=False, priority=True),
        Binding("down", "earlier(-1)", show=False, priority=True),
    ]

    def __init__(
        self,
        title: str,
        value: str,
        done: Callable[[str], None],
        check: Callable[[str], str],
        hint: str,
        complete: Callable[[str], list[str]],
        history: list[str],
    ) -> None:
        super().__init__(id="prompt-bar")
        self._complete, self._history = complete, history
        self._back = 0
        self._offered: list[str] = []
        self.border_title = Text(line(title, 120))  # type: ignore[assignment]
        self._value, self._done, self._check, self._hint = literal(value), done, check, hint

    def compose(self) -> ComposeResult:
        """The input over its hint."""
        yield Input(self._value, id="prompt-input", select_on_focus=False)
        yield Static(Text(self._hint), id="prompt-hint")

    def on_mount(self) -> None:
        """Take the keys; no message lies over what is typed."""
        self.app.clear_notifications()
        self.screen.add_class("typing")
        self.query_one(Input).focus()

    def on_resize(self) -> None:
        """On a low terminal the line that is typed goes before what can be typed."""
        room = self.app.size.height - 5
        hint = self.query_one("#prompt-hint", Static)
        hint.display = room > 0
        hint.styles.max_height = max(1, room)
        self.border_subtitle = "" if room > 0 else "enter · esc"

    def on_unmount(self) -> None:
        """Messages may stand at the bottom again."""
        self.screen.remove_class("typing")

    def action_complete(self) -> None:
        """Complete the last word; again for the next completion."""
        box = self.query_one(Input)
        if box.value not in self._offered:
            self._offered = self._complete(box.value)
        if self._offered:
            at = self._offered.index(box.value) + 1 if box.value in self._offered else 0
            self._put(self._offered[at % len(self._offered)])

    def action_earlier(self, by: int) -> None:
        """What was typed here before."""
        self._back = max(0, min(self._back + by, len(self._history)))
        self._put(self._history[-self._back] if self._back else self._value)

    def _put(self, text: str) -> None:
        box = self.query_one(Input)
        box.value = text
        box.cursor_position = len(text)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Say at once what cannot be understood."""
        event.stop()
        problem = self._check(event.value) if event.value else ""
        offered = [] if event.value in self._offered else self._complete(event.value)
        hint = f"tab: {' · '.join(text.split()[-1] for text in offered)}" if offered else self._hint
        self.query_one("#prompt-hint", Static).update(Text(line(f"✗ {problem}" if problem else hint, 400)))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Accept, unless it cannot be understood."""
        event.stop()
        if event.value and self._check(event.value):
            return
        text = event.value.strip()
        if text and text not in self._history[-1:]:
            self._history.append(text)
        # on the screen's behalf: a dialog that `done` opens answers to whoever opened it, and the bar will be gone
        self.screen.call_later(self._done, text)
        self.remove()

    def action_cancel(self) -> None:
        """Leave everything as it was."""
        self.remove()


def ask(
    screen: Screen,
    title: str,
    value: str,
    done: Callable[[str], None],
    check: Callable[[str], str] = lambda text: "",
    hint: str = "enter accepts · esc cancels",
    complete: Callable[[str], list[str]] = lambda text: [],
    history: list[str] | None = None,
) -> None:
    """Let a person type a text; `done` gets it. `history` is what was typed before, and is added to."""
    if not screen.query("#prompt-bar"):
        screen.mount(PromptBar(title, value, done, check, hint, complete, [] if history is None else history))

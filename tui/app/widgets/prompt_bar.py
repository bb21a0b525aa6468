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

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", show=False)]

    def __init__(
        self,
        title: str,
        value: str,
        done: Callable[[str], None],
        check: Callable[[str], str],
        hint: str,
    ) -> None:
        super().__init__(id="prompt-bar")
        self.border_title = Text(line(title, 120))  # type: ignore[assignment]
        self._value, self._done, self._check, self._hint = literal(value), done, check, hint

    def compose(self) -> ComposeResult:
        """The input over its hint."""
        yield Input(self._value, id="prompt-input", select_on_focus=False)
        yield Static(Text(self._hint), id="prompt-hint")

    def on_mount(self) -> None:
        """Take the keys."""
        self.query_one(Input).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Say at once what cannot be understood."""
        event.stop()
        problem = self._check(event.value) if event.value else ""
        self.query_one("#prompt-hint", Static).update(Text(f"✗ {line(problem, 400)}" if problem else self._hint))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Accept, unless it cannot be understood."""
        event.stop()
        if event.value and self._check(event.value):
            return
        # on the screen's behalf: a dialog that `done` opens answers to whoever opened it, and the bar will be gone
        self.screen.call_later(self._done, event.value.strip())
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
) -> None:
    """Let a person type a text; `done` gets it."""
    if not screen.query("#prompt-bar"):
        screen.mount(PromptBar(title, value, done, check, hint))

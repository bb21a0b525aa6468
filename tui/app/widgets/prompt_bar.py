"""A line for typing, over the bottom of a screen, which exists only while it is needed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.events import Key
from textual.message import Message
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input, Static

from ...text import line, literal

LONGEST_S = 1.0
"""Seconds that keys wait for earlier ones."""


class KeysAhead:
    """Keys pressed before the input of a prompt had the focus.

    They are in the queue of another widget. They bubble to the app, which must put them before the keys that meanwhile
    arrive from the terminal. post: sends a key to the input.
    """

    def __init__(self, post: Callable[[Key], object]) -> None:
        self.heard: Key | None = None
        """The last key that the input received."""
        self._post = post
        self._early: list[Key] = []
        self._later: list[Key] | None = []

    def takes(self, event: Key) -> bool:
        """Take a key that another widget received before the prompt had the focus. Returns whether it was one."""
        if event is self.heard:
            return False
        key = Key(event.key, event.character)
        if self._later is None:  # it took longer than `LONGEST_S`
            self._post(key)
        else:
            self._early.append(key)
        return True

    def holds(self, event: Key) -> bool:
        """Keep a key that arrives while earlier ones are still on their way. Returns whether it was kept."""
        if self._later is not None:
            self._later.append(event)
        return self._later is not None

    def released(self) -> list[Key]:
        """Return the kept keys in the order of typing. From now on, keys go to the input."""
        keys = [*self._early, *(self._later or ())]
        self._early, self._later = [], None
        return keys


class PromptBar(Widget):
    """Enter accepts, escape cancels. `check` returns the error of a text, or an empty string."""

    class Reached(Message):
        """Bubbles from the widget that had the focus, behind the last key that it received."""

        def __init__(self, prompt: PromptBar) -> None:
            super().__init__()
            self.prompt = prompt

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
        self.ahead = KeysAhead(lambda key: self.app.post_message(key))
        self._offered: list[str] = []
        self.border_title = Text(line(title, 120))  # type: ignore[assignment]
        self._value, self._done, self._check, self._hint = literal(value), done, check, hint
        unseen = {c for c in "".join((value, *history)) if not c.isspace()}
        self._pictures = {"␊": "\n", "␉": "\t"} | {shown: c for c in unseen if (shown := literal(c)) != c}
        """Characters of earlier texts, by the form in which the line shows them. They stay in the text."""

    def compose(self) -> ComposeResult:
        yield Input(self._value, id="prompt-input", select_on_focus=False)
        yield Static(Text(self._hint), id="prompt-hint")

    def on_mount(self) -> None:
        self.app.clear_notifications()
        self.screen.add_class("typing")
        before = self.screen.focused or self.screen
        self.screen.set_focus(self.query_one(Input))
        before.post_message(self.Reached(self))
        self.set_timer(LONGEST_S, partial(self.app.post_message, self.Reached(self)))  # `before` may be gone

    def on_key(self, event: Key) -> None:
        self.ahead.heard = event

    def on_resize(self) -> None:
        room = self.app.size.height - 5
        hint = self.query_one("#prompt-hint", Static)
        hint.display = room > 0
        hint.styles.max_height = max(1, room)
        self.border_subtitle = "" if room > 0 else "enter · esc"

    def on_unmount(self) -> None:
        self.screen.remove_class("typing")

    def action_complete(self) -> None:
        box = self.query_one(Input)
        if box.value not in self._offered:
            self._offered = self._complete(box.value)
        if self._offered:
            index = self._offered.index(box.value) + 1 if box.value in self._offered else 0
            self._put(self._offered[index % len(self._offered)])

    def action_earlier(self, by: int) -> None:
        self._back = max(0, min(self._back + by, len(self._history)))
        self._put(literal(self._history[-self._back]) if self._back else self._value)

    def _put(self, text: str) -> None:
        box = self.query_one(Input)
        box.value = text
        box.cursor_position = len(text)

    def _text(self, shown: str) -> str:
        for picture, character in self._pictures.items():
            shown = shown.replace(picture, character)
        return shown

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if event.input.cursor_at_end:  # Textual does not scroll to the end of the first text
            self.call_after_refresh(lambda: event.input.scroll_to(event.input.max_scroll_x, animate=False, force=True))
        problem = self._check(self._text(event.value))
        offered = [] if event.value in self._offered else self._complete(event.value)
        hint = f"tab: {' · '.join(text.split()[-1] for text in offered)}" if offered else self._hint
        self.query_one("#prompt-hint", Static).update(Text(line(f"✗ {problem}" if problem else hint, 400)))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        text = self._text(event.value)
        if self._check(text):
            return
        text = text.strip()
        if text and text not in self._history[-1:]:
            self._history.append(text)
        # called by the screen: a dialog that `done` opens returns its answer to the opener, and the bar will be gone
        self.screen.call_later(self._done, text)
        self.remove()

    def action_cancel(self) -> None:
        self._check(self._text(self._value))  # the check may also preview the result of a text
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
) -> Awaitable[None]:
    """Ask for a text and pass it to `done`. `history` holds earlier texts and gets this one. Actions return the result
    to Textual, so that keys typed ahead wait for the prompt."""
    if screen.query("#prompt-bar"):
        return AwaitComplete.nothing()
    return screen.mount(PromptBar(title, value, done, check, hint, complete, [] if history is None else history))

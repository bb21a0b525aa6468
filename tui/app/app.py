"""The app: its screen stack, theme and memory. Screens are in `screens/`, keys in `bindings.py`.

Only the modules of the first screen are imported at the start, so the first paint comes early at any size of the run.
"""

from __future__ import annotations

import gc
import os
import sys
import unicodedata
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual.app import SystemCommand
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.command import CommandList, CommandPalette, DiscoveryHit, Hits
from textual.events import Event, Key, Paste
from textual.filter import LineFilter, Monochrome, NoColor
from textual.screen import Screen
from textual.system_commands import SystemCommandsProvider

from ..text import literal
from .bindings import helps
from .destinations import FURTHER, Destination, Further, Runs
from .shell import Memory, Shell
from .theme import DEFAULT_THEME, THEMES, Palette, textual_themes
from .widgets.prompt_bar import PromptBar


class GrpoApp(Shell):
    """`grpo-tui`: runs, live dashboard, trajectories, stepper."""

    TITLE = "grpo-tui"
    CSS_PATH = "app.tcss"
    COMMANDS = {lambda: InOrder}  # noqa: RUF012 - Textual declares it without ClassVar
    ESCAPE_TO_MINIMIZE = False
    AUTO_FOCUS = ""

    def __init__(
        self,
        runs_dir: Path,
        start: Destination | None = None,
        *,
        memory: Memory | None = None,
        theme: str | None = None,
        greeting: str = "",
    ) -> None:
        super().__init__(runs_dir, memory)
        self.animation_level = "none"
        self.start = start or Runs()
        self.greeting = greeting
        self.failure = ""
        for textual_theme in textual_themes():
            self.register_theme(textual_theme)
        chosen = theme or self.memory.get("theme", DEFAULT_THEME)
        chosen = chosen if chosen in THEMES else DEFAULT_THEME
        self.palette = Palette(THEMES[chosen])
        self.theme = chosen

    def get_default_screen(self) -> Screen:
        """Return the requested screen as the first one, which avoids laying out another screen."""
        screen = self.screen_for(self.start)
        screen.destination = self.start
        return screen

    def on_mount(self) -> None:
        if self.greeting:
            self.notify(self.greeting, timeout=6, markup=False)

    def watch_theme(self, theme: str) -> None:
        if theme not in THEMES:
            return
        self.palette = Palette(THEMES[theme])
        self.memory.put("theme", theme)
        for screen in self.screen_stack:
            if hasattr(screen, "repaint") and screen.is_attached:
                screen.repaint()  # type: ignore[attr-defined]

    def action_next_theme(self) -> None:
        names = list(THEMES)
        self.theme = names[(names.index(self.theme) + 1) % len(names)] if self.theme in names else names[0]

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Drop all colours under `NO_COLOR`, where Textual would use shades of grey."""
        return [NoColor() if isinstance(f, Monochrome) else f for f in super().get_line_filters()]

    def action_repaint(self) -> None:
        if self.painter is not None:
            self.painter.forget()
        for screen in self.screen_stack[-1:]:
            screen.refresh()

    def on_resize(self) -> None:
        self.action_repaint()

    def get_system_commands(self, screen: Screen) -> Iterable[SystemCommand]:
        view = getattr(screen, "view", "")
        for row in sorted(helps(view), key=lambda row: len(row.screens)):
            title, _, more = row.help.partition(", ")
            if row.label and not row.together and not title.casefold().startswith(row.label.casefold()):
                title, more = row.label, row.help
            title = title[:1].upper() + title[1:]
            yield SystemCommand(f"{title}  ({row.shown})", more, _runner(self, screen, row.action))
        run = getattr(getattr(screen, "destination", None), "run", None)
        if run is not None:
            for title in FURTHER:
                yield SystemCommand(title, "", partial(self.open, Further(run, title)))
        for name in THEMES:
            yield SystemCommand(f"Theme {name}", "", partial(setattr, self, "theme", name))

    async def on_event(self, event: Event) -> None:
        """Remove control and format characters from pasted text, because inputs show their value as it is. Join lines
        with the picture of a line break, because an input takes one line."""
        if isinstance(event, Paste) and not event.is_forwarded:
            text = "␊".join(event.text.splitlines()[: None if self._prompt else 1])
            event = Paste("".join(c for c in text if c == "\t" or not unicodedata.category(c).startswith("C")))
        elif isinstance(event, Key) and not event.is_forwarded and self._prompt and self._prompt.ahead.holds(event):
            return
        await super().on_event(event)

    @property
    def _prompt(self) -> PromptBar | None:
        parent = getattr(self.focused, "parent", None)
        return parent if isinstance(parent, PromptBar) else None

    def on_key(self, event: Key) -> None:
        if self._prompt and self._prompt.ahead.takes(event):
            event.prevent_default()

    async def on_prompt_bar_reached(self, event: PromptBar.Reached) -> None:
        for key in event.prompt.ahead.released():
            await super().on_event(key)

    def action_command_palette(self) -> None:
        if self.use_command_palette and not isinstance(self.screen, CommandPalette):
            self.push_screen(OncePalette())

    def fatal(self, error: BaseException) -> None:
        """Keep one line for the user, and write the traceback to a file next to the memory."""
        import traceback

        file = self.memory.path.with_name("app-error.log")
        text = "".join(traceback.format_exception(error))
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", errors="backslashreplace")
            where = f"details are in {file}"
        except OSError:
            where = "its details could not be written"
        what = f"{type(error).__name__}: {error}"
        self.failure = literal(f"grpo-tui: the app crashed ({what}); {where}")

    def on_unmount(self) -> None:
        for reads in self._reads.values():
            reads.close()
        self.memory.save()


class InOrder(SystemCommandsProvider):
    """List the commands in the app's order. Textual sorts them by name."""

    async def discover(self) -> Hits:
        for title, more, callback, _ in self.app.get_system_commands(self.screen):
            yield DiscoveryHit(title, callback, help=more)


class OncePalette(CommandPalette):
    """A palette that closes once and runs one command, however often enter is pressed."""

    VERTICAL_BREAKPOINTS = [(0, "-short"), (16, "-tall")]  # noqa: RUF012 - Textual declares it without ClassVar
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pagedown", "page(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
    ]

    def dismiss(self, result: None = None) -> AwaitComplete:
        return super().dismiss(result) if self.app.screen is self else AwaitComplete.nothing()

    def action_page(self, by: int) -> None:
        commands = self.query_one(CommandList)
        with suppress(KeyError):  # raised by Textual's list between getting its options and its layout
            commands.action_page_down() if by > 0 else commands.action_page_up()


def _runner(app: GrpoApp, screen: Screen, action: str) -> Callable[[], Awaitable[None]]:
    done = False

    async def run() -> None:
        nonlocal done
        if not done:
            done = True
            await app.run_action(action, default_namespace=screen)

    return run


def run_app(runs_dir: Path, start: Destination | None = None, greeting: str = "") -> None:
    """Open the app at `start`, by default the list of runs, and return when it ends."""
    if sys.stdout.isatty() and os.get_terminal_size(sys.stdout.fileno()).columns:
        for name in ("COLUMNS", "LINES"):  # Textual would believe them, also after a resize
            os.environ.pop(name, None)
    app = GrpoApp(Path(runs_dir), start, greeting=greeting)
    gc.freeze()  # imports live as long as the app; collections skip them and stay unnoticed
    gc.enable()
    app.run()
    if app.failure:
        print(app.failure, file=sys.stderr)
        raise SystemExit(1)
    if app.return_code:
        if not os.isatty(2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # Python 3.13 would end with 120: its last flush fails
        raise SystemExit(app.return_code)

"""The shared parts of all screens: the frame with header and hints, scroll keys, messages, help and back."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from textual.app import App, ComposeResult, SuspendNotSupported
from textual.screen import Screen

from ....configs.errors import GrpoTuiError
from ....engine.runs.errors import RecordError
from ....engine.runs.search.query import EVERYTHING
from ...text import file_name, literal
from ...text import line as one_line
from ..bindings import SCREEN_TITLES, Key, bindings, hints
from ..data import Reads
from ..destinations import Destination, Help, Stepper, typed_destination
from ..shell import Shell
from ..theme import Palette
from ..widgets.frame import Box, Frame
from ..widgets.pane import Line, Pane
from ..widgets.prompt_bar import ask
from ..widgets.table import Table

T = TypeVar("T")
HINT = "812 or an id: a trajectory (in the stepper: a step) · 812/3: its third step · step 40 · live, list, runs"
PATIENCE_S = 0.1
"""Seconds until the screen shows that a read is in progress."""
ALWAYS = ("?", "esc", "q")
"""Keys shown at every width, without labels on narrow screens."""


class AppScreen(Screen[Any]):
    """A frame with panes. Subclasses set `view`, create `panes` and `plan` their boxes. A single pane fills it."""

    view: ClassVar[str] = ""
    panes: Callable[[], list[Pane]]
    AUTO_FOCUS = ""
    frame: Frame
    destination: Destination | None = None
    """The destination for which the app made this screen."""
    _active = ""
    _messages_shown = 0

    def __init_subclass__(cls, **options: Any) -> None:
        if view := cls.__dict__.get("view"):
            cls.BINDINGS = bindings(view)
        super().__init_subclass__(**options)

    @property
    def shell(self) -> Shell:
        return cast(Shell, self.app)

    @property
    def palette(self) -> Palette:
        return self.shell.palette

    def plan(self, width: int, height: int) -> list[Box]:
        return [Box(next(iter(self.frame.panes)), 0, 0, width, height)]

    def header(self, width: int) -> tuple[Line, Line]:
        title = SCREEN_TITLES.get(self.view, self.view)
        return Line(self.palette, title, self.palette.title), Line(self.palette)

    def heading(self, what: str, width: int) -> Line:
        """Return the run, the kind of screen and the query of a list."""
        p, run = self.palette, getattr(self.destination, "run", None)
        query = getattr(self, "list_query", EVERYTHING).describe()
        name = run.name if isinstance(run, Path) else ""
        left = Line(p).add(name, p.title, most=28).add(f" · {what}", p.muted)
        if query:
            left.add(" · ", p.faint).add(query, p.accent, most=max(8, width - left.width - 30))
        return left

    def compose(self) -> ComposeResult:
        self.frame = Frame(*self.panes(), plan=self.plan, header=self.header, footer=self.footer, status=self.status)
        yield self.frame

    def footer(self, width: int) -> Line:
        labels = {row: self.hint_label(row.action, row.label) for row in hints(self.view)}
        return _hint_line(self.palette, labels, width)

    def hint_label(self, action: str, label: str) -> str:
        """Return the current label of a hint. An empty label hides it."""
        return label

    def status(self, width: int) -> Line:
        return Line(self.palette)

    async def on_table_selected(self, message: Table.Selected) -> None:
        await self.run_action("open")

    def on_screen_suspend(self) -> None:
        self.app.clear_notifications()

    @property
    def scrolled(self) -> Pane:
        panes = list(self.frame.panes.values())
        shown = [p for p in panes if p.shown] or panes
        return next((p for p in shown if p.name == self._active), shown[0])

    def activate(self, name: str) -> None:
        self._active = name
        for pane in self.frame.panes.values():
            if pane.active != (pane.name == name):
                pane.active = pane.name == name
                pane.changed()

    def action_next_pane(self, by: int) -> None:
        names = [b.name for b in self.frame.boxes]
        index = names.index(self._active) if self._active in names else -1
        self.activate(names[(index + by) % len(names)])

    def action_scroll(self, by: int) -> None:
        self.scrolled.move_by(by)

    def action_page(self, by: int) -> None:
        self.scrolled.move_by(by * max(1, self.scrolled.size.height - 2))

    def action_first(self) -> None:
        self.scrolled.move_by(-(10**9))

    def action_last(self) -> None:
        self.scrolled.move_by(10**9)

    def action_help(self) -> None:
        self.shell.open(Help(self.view))

    def action_go_to(self) -> Awaitable[None] | None:
        run = getattr(self.destination, "run", None)
        if run is None:
            return
        reads, query = self.shell.reads(run), getattr(self, "list_query", EVERYTHING)

        def go(text: str) -> None:
            if self.gone_to(text):
                return
            try:
                target = typed_destination(text, reads, query)
            except (RecordError, LookupError) as error:
                self.say(str(error).strip("\"'"), "error")
                return
            self.shell.open(target, replace=isinstance(target, Stepper) and isinstance(self.destination, Stepper))

        return ask(self, "Go to", "", go, hint=HINT)

    def gone_to(self, text: str) -> bool:
        """Go to a place on this screen. Returns whether the text names one."""
        return False

    def action_back(self) -> None:
        self.shell.go_back()

    def say(self, message: str, severity: str = "information") -> None:
        if self._messages_shown >= 2:  # more would cover the screen
            self.app.clear_notifications()
            self._messages_shown = 0
        self._messages_shown += 1
        text = one_line(message, 600)
        timeout = max(4.0, len(text) / 15)  # people read 15 characters a second
        self.app.notify(text, severity=severity, timeout=timeout, markup=False)  # type: ignore[arg-type]

    def export(self, run: Path, name: str, text: Callable[[], str]) -> None:
        """Write a text to a file off the screen's thread, and report its path or the error."""
        self.in_background(lambda: write(run, name, text()), lambda path: self.say(f"Written: {path}"))

    def in_background(self, do: Callable[[], T], then: Callable[[T], object]) -> None:
        """Call `do` on a thread, then `then` with its result, even if the user has left the screen. Show errors."""

        async def called() -> None:
            try:
                done = await asyncio.to_thread(do)
            except (GrpoTuiError, LookupError, OSError) as error:
                self.say(str(error), "error")
                return
            then(done)

        self.app.run_worker(called(), group="background")

    def copy(self, text: str, what: str) -> None:
        from ..clipboard import copy

        async def copied() -> None:
            done = await asyncio.to_thread(copy, text, what)
            if done.send:
                self.app.copy_to_clipboard(text.encode(errors="replace").decode())
            self.say(done.message)

        self.run_worker(copied(), group="copy", exclusive=True)

    def repaint(self) -> None:
        for pane in self.frame.panes.values():
            pane.changed()
        self.frame.refresh()


def _hint_line(p: Palette, labels: Mapping[Key, str], width: int) -> Line:
    """Return as many hints as fit, without labels if the keys that leave the screen do not fit, or none."""
    items: dict[Key, Line] = {}
    room, short = width, False
    for row in sorted(labels, key=lambda r: r.shown not in ALWAYS):  # help, back and quit stay longest
        label = labels[row]
        item = (
            Line(p).add(row.together or row.shown, p.key, click=row.action).add(f" {label}", p.muted, click=row.action)
        )
        fits = label and item.width + 3 <= room
        if fits:
            items[row] = item.gap(3)
            room -= item.width
        short = short or (row.shown in ALWAYS and not fits)
    line = Line(p)
    if not short:
        for row in sorted(items, key=lambda r: r.shown in ALWAYS):
            line.extend(items[row])
        return line
    for row in sorted((r for r in labels if r.shown in ALWAYS), key=lambda r: ALWAYS.index(r.shown)):
        line.gap(int(line.width > 0)).add(row.shown, p.key, click=row.action)
    return line if line.width <= width else Line(p)


class GrowingScreen(AppScreen):
    """A screen over the rollouts of a run, which reads again when the run recorded more of them."""

    reads: Reads
    read: Callable[[], Coroutine[Any, Any, None]]
    _recorded: int | None = None

    def on_mount(self) -> None:
        self.set_interval(2.0, self._grow)

    def reread(self) -> None:
        if self.is_attached:
            self.run_worker(self.read(), group="read", exclusive=True)

    async def _grow(self) -> None:
        if self.app.screen is self:
            with suppress(RecordError):  # the screen's own reads report it
                before, self._recorded = self._recorded, await self.reads.later(lambda r: r.rollouts.total())
                if before is not None and before != self._recorded:
                    self.reread()


class PagedScreen(AppScreen):
    """A screen whose content also exists as plain text: `shown_text`, for a file `shown_name`."""

    reads: Reads
    shown_text: Callable[[], str]
    shown_name: Callable[[], str]

    @contextmanager
    def patience(self, show: Callable[[], object]) -> Iterator[None]:
        """Call `show` if the block takes longer than `PATIENCE_S`, but never after the block: a timer that has fired
        is delivered even if it was stopped meanwhile."""
        reading = [show]
        timer = self.set_timer(PATIENCE_S, lambda: [late() for late in reading])
        try:
            yield
        finally:
            reading.clear()
            timer.stop()

    def action_pager(self, variable: str = "PAGER") -> None:
        open_outside(self.app, self.shown_text(), variable, self.shown_name())

    def action_export(self) -> None:
        name, text = f"{Path(self.shown_name()).stem}-{time.strftime('%Y%m%d-%H%M%S')}.txt", self.shown_text()
        self.export(self.reads.path, name, lambda: text)


def write(run: Path, name: str, text: str) -> Path:
    """Write to `exports/` in the run's folder, or else to the current folder. Raises OSError if both fail."""
    safe = file_name(name).lstrip(".")
    exports, here = run / "exports", Path.cwd()
    for folder in (exports, here):
        try:
            folder.mkdir(exist_ok=True)
            file = folder / safe
            file.write_text(text, encoding="utf-8", errors="backslashreplace")
            return file
        except OSError:
            continue
    raise OSError(f"neither {exports} nor {here} can be written")


def open_outside(app: App[object], text: str, variable: str, name: str) -> None:
    """Open a text in `$PAGER` or `$EDITOR`. The app waits until the program ends."""
    import shlex  # imported here to keep the first paint fast

    fallback = ("less", "more") if variable == "PAGER" else ("vi", "nano")
    try:
        command = shlex.split(os.environ.get(variable, "")) or [p for p in fallback if shutil.which(p)][:1]
    except ValueError:  # an unclosed quotation mark
        command = []
    if not command or not shutil.which(command[0]):
        app.notify(f"Set ${variable} to a program that is installed.", severity="warning", markup=False)
        return
    # the pager gets literal text, too: control characters become pictures, line breaks stay
    shown = "\n".join(literal(part.expandtabs(4)) for part in text.split("\n"))
    try:
        with tempfile.TemporaryDirectory(prefix="grpo-tui-") as folder:
            path = Path(folder) / name
            path.write_text(shown, encoding="utf-8", errors="backslashreplace")
            with app.suspend():
                subprocess.run([*command, path], check=False)
    except SuspendNotSupported:
        app.notify("The browser cannot open programs. Press e to write a file.", severity="warning", markup=False)
    except OSError as error:
        app.notify(f"{command[0]} could not be started: {error}", severity="error", markup=False)
    finally:
        app.refresh(layout=True)

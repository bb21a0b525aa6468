"""All private names of Textual that the product uses.

The app checks each name at the start. If one is missing or has another signature, Textual's own behaviour remains:

| taken | for | without it |
|---|---|---|
| `App._display`, the compositor's updates | sending only the cells that differ (`painter.py`) | whole lines are sent |
| `App._fatal_error` | one line for the user, the traceback in a file | Textual's traceback on the terminal |
| `Screen._push_result_callback` | replacing the first screen, which was never pushed | the new one is put on top |
| `LinuxDriver._key_thread`, `._file` | one input thread that keeps all keys; no wait for a closed tty | its behaviour |
| `LinuxDriver._writer_thread`, its `_queue` | skipping updates of a terminal that is behind | each is sent |
| `LinuxDriver.attrs_before` | giving back a terminal that does not read its output | it stays without echo |
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TextIO

from rich.color import ColorSystem
from rich.console import COLOR_SYSTEMS
from textual.app import App
from textual.driver import Driver
from textual.events import Event, InputEvent, Key, Paste
from textual.message import Message
from textual.screen import Screen
from textual.strip import Strip
from textual.worker import WorkerFailed

from .painter import Painter, Unpaintable

_compositor: object = import_module("textual._compositor") if find_spec("textual._compositor") else None
_LAYOUT: Any = getattr(_compositor, "LayoutUpdate", ())
"""An update of all lines: `strips` in a `region`."""
_CHOPS: Any = getattr(_compositor, "ChopsUpdate", ())
"""An update of spans of some lines."""

_SYNCHRONISED = "\x1b[?2026h{}\x1b[?2026l"
"""Terminals that support this mode show the enclosed text at once."""
_OF_THE_APP = ("_batch_count", "_closed", "_driver", "_sync_available")
_TYPED = 1_000
"""Characters that arrived together from which they count as pasted: nobody types so fast."""
_BURST = 32
"""Characters that arrived together from which the app waits for more."""
_PAUSE_S = 0.1
"""Seconds without input that end a pasted text, and between two looks at a terminal that is behind."""
_BEHIND = 2
"""Updates that may wait for the terminal to read its output. Later ones are skipped until it has caught up."""
_PATIENCE_S = 3.0
"""Seconds after a signal until the app ends although its terminal does not read the output."""
HUNG_UP = 129
"""The exit code that shells give a program that ended with its terminal (128 + SIGHUP)."""


class OwnOutputApp(App[None]):
    """An app that sends updates through the painter if it knows this Textual's internals."""

    fatal: Callable[[BaseException], None]
    """Reports an error that ends the app."""
    save: Callable[[], None]
    """Saves the settings."""

    def __init__(self) -> None:
        super().__init__()
        colors = COLOR_SYSTEMS.get(self.console.color_system or "", ColorSystem.TRUECOLOR)
        self.painter = Painter(colors) if _is_known(self) else None
        """A model of the terminal; None if Textual sends the screen itself."""
        self._catching_up = False

    def get_driver_class(self) -> type[Driver]:
        driver = super().get_driver_class()
        return driver if sys.platform == "win32" else _single_input(driver)

    def on_mount(self) -> None:
        driver = self._driver
        if not self.is_headless and getattr(driver, "input_tty", False):
            # if SIGHUP is ignored (nohup), Textual would read the end of file for ever
            number = getattr(driver, "fileno", 0)
            self.set_interval(1.0, lambda: None if os.isatty(number) else self.exit(return_code=HUNG_UP))
            for sent in (signal.SIGHUP, signal.SIGTERM):  # save the settings, and give the terminal back
                if signal.getsignal(sent) != signal.SIG_IGN:
                    signal.signal(sent, partial(self._end, asyncio.get_running_loop()))
        elif self.is_web:
            server = os.getppid()
            self.set_interval(1.0, lambda: None if os.getppid() == server else self.exit(return_code=HUNG_UP))

    def _end(self, loop: asyncio.AbstractEventLoop, number: int, frame: object) -> None:
        """End the app, also if its thread waits for a terminal that does not read: the handler of a signal."""
        loop.call_soon_threadsafe(partial(self.exit, return_code=128 + number))
        last = threading.Timer(_PATIENCE_S, self._give_up, [128 + number])
        last.daemon = True
        last.start()

    def _give_up(self, code: int) -> None:
        self.save()
        with suppress(Exception):
            import termios

            termios.tcsetattr(sys.__stdin__, termios.TCSANOW, self._driver.attrs_before)  # type: ignore[union-attr, arg-type]
        os._exit(code)

    async def on_event(self, event: Event) -> None:
        if isinstance(event, _Typed):
            before = 0
            while _BURST < event.size != before:  # the rest of a text may still arrive
                before = event.size
                await asyncio.sleep(_PAUSE_S)
            keys, more = event.taken()
            if more:
                await self.on_event(Paste("".join([*(key.character or "" for key in keys), *more]).replace("\r", "\n")))
                return
            for key in keys:
                await self.on_event(key)
            return
        await super().on_event(event)

    def _display(self, screen: Any, renderable: Any, *more: Any, **named: Any) -> None:
        """Send an update in one write, without cells that the terminal already shows."""
        if self.painter is None or more or named or not self._sent(self.painter, renderable):
            super()._display(screen, renderable, *more, **named)

    def _sent(self, painter: Painter, update: object) -> bool:
        driver = self._driver
        if driver is None or self._batch_count or self._closed or not self.is_running:
            return False
        if self.is_headless or self.is_inline or not isinstance(update, (_LAYOUT, _CHOPS)):
            return False
        waiting = getattr(getattr(driver, "_writer_thread", None), "_queue", None)
        if waiting is not None and waiting.qsize() > _BEHIND and not self._catching_up:
            self._catching_up = True
            self.set_timer(_PAUSE_S, self._catch_up)
        if self._catching_up:
            return True
        size = self.screen.outer_size
        try:
            text = painter.paint(pieces(update), size, size.clamp_offset(self.cursor_position))
        except Unpaintable:  # such as a sixel picture
            painter.forget()
            return False
        except (AttributeError, TypeError, ValueError, LookupError) as error:
            self.log.error(f"Textual sends the screen from here on: {error!r}")
            self.painter = None
            return False
        if text:
            driver.write(_SYNCHRONISED.format(text) if self._sync_available else text)
            driver.flush()
        self.post_display_hook()
        return True

    def _catch_up(self) -> None:
        """Send the newest state of a screen of which updates were skipped."""
        self._catching_up = False
        self.screen.refresh()

    def send(self, text: str) -> None:
        """Send escape codes in order. Updates wait in Textual's writer thread, so a direct write could split one."""
        if self._driver is not None and self.is_running:
            self._driver.write(text)
            self._driver.flush()

    def _fatal_error(self) -> None:
        error = getattr(self, "_exception", None) or RuntimeError("unknown")
        if not hasattr(self, "_close_messages_no_wait"):
            super()._fatal_error()
            return
        self.fatal(error.error if isinstance(error, WorkerFailed) else error)  # the inner one has the traceback
        self._close_messages_no_wait()

    def replace_screen(self, screen: Screen[object]) -> None:
        if len(self.screen_stack) == 1:  # the first screen was never pushed, so it has no callback yet
            try:
                if not self.screen._result_callbacks:
                    self.screen._push_result_callback(self, None)
            except (AttributeError, TypeError):
                self.push_screen(screen)
                return
        self.switch_screen(screen)


class _LossyOutput:
    """A terminal that hides errors from Textual's writer thread: one would end it and block all later writes."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._terminal.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._terminal.flush()

    def fileno(self) -> int:
        return self._terminal.fileno()


class _Typed(InputEvent, bubble=False):
    """Keys with a character that arrived before the app took the first one. As single messages, a pasted megabyte from
    a terminal without bracketed paste would occupy the app for many minutes."""

    def __init__(self, key: Key) -> None:
        super().__init__()
        self._keys, self._more = [key], list[str]()
        self._lock = threading.Lock()
        self._open = True

    @property
    def size(self) -> int:
        return len(self._keys) + len(self._more)

    def adds(self, key: Key) -> bool:
        """Add a key, unless the app has taken the others. Returns whether it did."""
        with self._lock:
            if self._open and len(self._keys) < _TYPED:
                self._keys.append(key)
            elif self._open:
                self._more.append(key.character or "")
            return self._open

    def taken(self) -> tuple[list[Key], list[str]]:
        """Return the first `_TYPED` keys, and the characters of the others."""
        with self._lock:
            self._open = False
            return self._keys, self._more


def _single_input(base: type[Driver]) -> type[Driver]:
    class SingleInput(base):  # type: ignore[valid-type, misc]
        _typed: _Typed | None = None
        exit_event: threading.Event
        _key_thread: threading.Thread

        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self._file = _LossyOutput(sys.__stderr__)  # type: ignore[arg-type]
            self._starts = False

        def start_application_mode(self) -> None:
            # SIGCONT also arrives without a previous suspension: after SIGSTOP, and with a hangup.
            # Textual would start a second input thread, and the two would share the keys.
            if self._starts:  # a signal during this method
                return
            self._starts = True
            try:
                running = getattr(self, "_key_thread", None)
                if running is not None and running.is_alive():
                    self.suspend_application_mode()
                super().start_application_mode()
            finally:
                self._starts = False

        def disable_input(self) -> None:
            if not self._starts:
                return super().disable_input()
            self.exit_event.set()  # without Textual's flush, which would lose keys that were typed before the restart
            self._key_thread.join()
            self.exit_event.clear()

        def send_message(self, message: Message) -> None:
            if isinstance(message, Key) and message.character is not None:
                if self._typed is not None and self._typed.adds(message):
                    return
                message = self._typed = _Typed(message)
            else:
                self._typed = None
            super().send_message(message)

        def run_input_thread(self) -> None:
            while True:
                try:
                    return super().run_input_thread()  # type: ignore[misc]
                except ValueError:  # bytes that are not UTF-8, as some terminals report the mouse: skip that block
                    continue

    return SingleInput


def pieces(update: Any) -> Iterator[tuple[int, int, Strip]]:
    """Yield column, line and content of each part of an update, as Textual's `render_segments` sends them."""
    if isinstance(update, _LAYOUT):
        for y, strips in enumerate(update.strips, update.region.y):
            x = update.region.x
            for strip in [strips] if isinstance(strips, Strip) else strips:  # Textual 6.2 has one strip per line
                yield x, y, strip
                x += strip.cell_length
        return
    for y, start, stop in update.spans:
        for end, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
            if strip is not None and x <= stop and end > start:
                yield x, y, strip if start <= x < stop and end <= stop else strip.crop(0, min(end, stop) - x)


def _is_known(app: App[None]) -> bool:
    """Return whether this Textual has the updates and the display that the painter replaces."""
    updates = _parameters(_LAYOUT) == ("strips", "region") and _parameters(_CHOPS) == ("chops", "spans", "chop_ends")
    display = _parameters(getattr(App, "_display", None)) == ("self", "screen", "renderable")
    return updates and display and all(hasattr(app, name) for name in _OF_THE_APP)


def _parameters(function: object) -> tuple[str, ...] | None:
    return tuple(inspect.signature(function).parameters) if callable(function) else None

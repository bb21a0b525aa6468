"""Drive the app in a test: open it, wait until it has read what it shows, and read the screen as text."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from textual import events
from textual.pilot import Pilot

from grpo_tui.tui.app.app import GrpoApp
from grpo_tui.tui.app.destinations import Destination, Runs
from grpo_tui.tui.app.shell import Memory

from .demo_run import EPOCH
from .rest import at_rest

SIZE = (150, 45)


def make_app(runs: Path, start: Destination, *, memory: Path | None = None, theme: str | None = None) -> GrpoApp:
    """An app whose memory is its own and whose clock stands still."""
    app = GrpoApp(runs, start, memory=Memory(memory or Path("/dev/null/nowhere.json")), theme=theme)
    app.clock = lambda: EPOCH + 7200
    return app


def screen_text(app: GrpoApp) -> str:
    """What is on screen, line by line."""
    return "\n".join("".join(s.text for s in strip) for strip in app.screen._compositor.render_strips())


async def settle(pilot: Pilot[Any]) -> None:
    """Wait until nothing is being read or painted."""
    await at_rest(pilot.app)


def _character(key: str) -> str | None:
    """What a key types."""
    with suppress(KeyError):
        key = unicodedata.lookup(key.replace("_", " ").upper()) if len(key) > 1 else key
    return key if len(key) == 1 and key.isprintable() else None


class Driver:
    """A running app with short names for what tests do."""

    def __init__(self, app: GrpoApp, pilot: Pilot[Any]) -> None:
        self.app = app
        self.pilot = pilot

    async def press(self, *keys: str) -> str:
        """Press keys; the screen afterwards."""
        await self.pilot.press(*keys)
        await settle(self.pilot)
        return self.text

    async def until(self, *texts: str) -> str:
        """Wait for what comes by the clock or from another thread: the screen once it shows all of these texts."""
        for _ in range(600):
            await settle(self.pilot)
            if all(text in self.text for text in texts):
                return self.text
            await asyncio.sleep(0.05)
        raise AssertionError(f"{texts} never came:\n{self.text}")

    async def burst(self, *keys: str) -> None:
        """Press keys faster than the app takes them, as where it is busy: all go to what has the focus now."""
        focused = self.app.focused or self.app.screen
        for key in keys:
            focused.post_message(events.Key(key, _character(key)))
        await self.pilot.pause()

    async def type(self, text: str) -> str:
        """Type a text; the screen afterwards."""
        names = {" ": "space", "<": "less_than_sign", ">": "greater_than_sign", ":": "colon", "_": "underscore"}
        return await self.press(*(names.get(c, c) for c in text))

    async def click(self, text: str, offset: int = 0) -> str:
        """Click where a text is on screen; the screen afterwards."""
        for y, line in enumerate(self.text.splitlines()):
            x = line.find(text)
            if x >= 0:
                await self.pilot.click(offset=(x + offset, y))
                await settle(self.pilot)
                return self.text
        raise AssertionError(f"{text!r} is not on screen:\n{self.text}")

    @property
    def text(self) -> str:
        """What is on screen."""
        return screen_text(self.app)

    @property
    def screen(self) -> Any:
        """The screen on top."""
        return self.app.screen

    @property
    def view(self) -> str:
        """Its name in the table of keys."""
        return getattr(self.app.screen, "view", type(self.app.screen).__name__)


@asynccontextmanager
async def running(
    runs: Path, start: Destination | None = None, size: tuple[int, int] = SIZE, **options: Any
) -> AsyncIterator[Driver]:
    """The app, running without a terminal."""
    app = make_app(runs, start or Runs(), **options)
    async with app.run_test(size=size, notifications=True) as pilot:
        await settle(pilot)
        yield Driver(app, pilot)

"""Wait until an app is at rest, by what it still has to do instead of by the clock.

Textual's `wait_for_idle` sleeps 20 ms a time, and a key takes two of them and a pause one. Here an app is at rest
when the event loop has nothing to run (so every message is processed), nothing is about to run, no worker is running,
no animation is on its way, and the screen has nothing to paint.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from textual import _wait
from textual._context import active_app
from textual.app import App

SOON_S = 0.1
"""Textual delays some things by up to this, such as a resize by 8 ms. Clocks of the app go by seconds."""
TURNS = 3
"""Turns of the event loop in a row without anything to run. Each also asks the system for what has arrived."""
LIMIT = 30.0


def running(app: App[Any]) -> list[asyncio.Task[Any]]:
    """The workers that have not ended."""
    return [worker._task for worker in app.workers if not worker.is_finished and worker._task is not None]


def about_to_run(app: App[Any]) -> list[asyncio.Task[None]]:
    """What `set_timer` will call once, soon."""
    timers = [timer for node in (app, *app._registry) for timer in node._timers]
    once = [timer for timer in timers if timer._repeat is not None and timer._interval <= SOON_S]
    return [timer._task for timer in once if timer._task is not None and not timer._task.done()]


async def nothing_to_run(app: App[Any] | None) -> None:
    """Wait until the event loop waits for a clock of the app, a thread or the system."""
    ready: Any = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    empty = 0
    while empty < TURNS:
        await asyncio.sleep(0)
        empty = 0 if ready else empty + 1
        if empty == TURNS and app is not None and (soon := about_to_run(app)):
            await asyncio.wait(soon, timeout=SOON_S)
            empty = 0


def painted(app: App[Any]) -> bool:
    """Whether the screen has nothing to paint. If it has, it paints now and not with the next frame."""
    if not app.is_running or app._exit or not app.screen_stack:
        return True
    screen: Any = app.screen
    waits = (
        screen._layout_required
        or screen._scroll_required
        or screen._repaint_required
        or screen._recompose_required
        or screen._dirty_widgets
        or screen._callbacks
    )
    if waits and screen.is_current and not app._batch_count:
        screen._on_timer_update()
        return False
    return True


async def at_rest(app: App[Any]) -> None:
    """Wait until nothing is being read or painted."""
    end = time.monotonic() + LIMIT
    while True:
        await nothing_to_run(app)
        if working := running(app):
            await asyncio.wait(working, timeout=LIMIT)
        else:
            await app.animator.wait_until_complete()
            if not asyncio.get_running_loop()._ready and painted(app):  # type: ignore[attr-defined]
                return
        assert time.monotonic() < end, f"the app is not at rest after {LIMIT} s"


async def wait_for_idle(min_sleep: float = _wait.SLEEP_GRANULARITY, max_sleep: float = 1) -> None:
    """What `textual._wait.wait_for_idle` waits for: where a worker still runs after its 20 ms, the clock decides."""
    app = active_app.get(None)
    end = time.monotonic() + _wait.SLEEP_GRANULARITY
    while True:
        await nothing_to_run(app)
        if app is None or not (working := running(app)):
            return
        left = end - time.monotonic()
        if left <= 0:
            return await _wait.wait_for_idle(min_sleep, max_sleep)
        await asyncio.wait(working, timeout=left)

"""One event loop for the life of the process, on a thread of its own: others' async code runs there.

Clients and sessions that such code keeps belong to the loop that they were made in, so there is only this one.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


_ONE_ASKS = threading.Lock()


def loop() -> asyncio.AbstractEventLoop:
    """The loop, running; the same for all threads, also when several are the first to ask."""
    with _ONE_ASKS:
        return _running()


@functools.cache
def _running() -> asyncio.AbstractEventLoop:
    made = asyncio.new_event_loop()
    threading.Thread(target=made.run_forever, name="async code", daemon=True).start()
    return made


def submit(work: Coroutine[object, object, T]) -> Future[T]:
    """Let `work` begin; its result can be waited for from any thread but the loop's own."""
    return asyncio.run_coroutine_threadsafe(work, loop())


def wait(work: Coroutine[object, object, T], timeout_s: float | None = None) -> T:
    """The result of `work`. Raises TimeoutError when it takes longer than `timeout_s`, and whatever it raises."""
    future = submit(work)
    try:
        return future.result(timeout_s)
    except TimeoutError:
        future.cancel()
        raise

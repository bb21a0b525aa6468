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
    """Return the running loop, the same for all threads."""
    with _ONE_ASKS:
        return _running()


@functools.cache
def _running() -> asyncio.AbstractEventLoop:
    made = asyncio.new_event_loop()
    threading.Thread(target=made.run_forever, name="async code", daemon=True).start()
    return made


def submit(work: Coroutine[object, object, T]) -> Future[T]:
    """Start `work`. Any thread but the loop's own may wait for its result."""
    return asyncio.run_coroutine_threadsafe(work, loop())


def wait(work: Coroutine[object, object, T], timeout_s: float | None = None) -> T:
    """Return the result of `work`. Raises its exception, and TimeoutError after `timeout_s`."""
    future = submit(work)
    try:
        return future.result(timeout_s)
    except TimeoutError:
        future.cancel()
        raise

"""Call code that may raise, hang, be slow or be async, and limit the damage to its own rollout."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from .user_code import one_line

T = TypeVar("T")
R = TypeVar("R")

STALL_S = 0.005
"""Seconds without a finished call after which another worker starts (up to the limit)."""
LOOK_S = 0.01
"""Interval between two calls of `meanwhile` in `beside`."""
LONGEST = 20_000
"""Maximum characters of a traceback, whose last line may be a message of megabytes."""


@dataclass(frozen=True)
class Outcome(Generic[R]):
    """The outcome of one call. `error` is one sentence for people, `detail` the traceback for the log."""

    value: R | None = None
    error: str | None = None
    detail: str = ""
    timed_out: bool = False
    seconds: float = 0.0


def guarded_map(function: Callable[[T], R], items: Sequence[T], *, timeout_s: float, workers: int) -> list[Outcome[R]]:
    """Call `function` on each item and return the outcomes in order.

    Quick calls run one after another on one thread. Whenever no call has finished for `STALL_S`, another thread starts,
    up to `workers`, so waits (for a network, a sandbox) overlap. A call that exceeds `timeout_s` is abandoned: Python
    cannot end a thread, so it remains as a daemon and its result is dropped. No exception of `function` propagates, not
    even SystemExit.
    """
    return _Batch(function, items, timeout_s, workers).run()


def guarded(function: Callable[[T], R], item: T, timeout_s: float) -> Outcome[R]:
    """Call `function` on one item, as `guarded_map` does."""
    return guarded_map(function, [item], timeout_s=timeout_s, workers=1)[0]


class _Batch(Generic[T, R]):
    def __init__(self, function: Callable[[T], R], items: Sequence[T], timeout_s: float, workers: int) -> None:
        self.function, self.items = function, items
        self.timeout_s, self.workers = timeout_s, workers
        self.outcomes: list[Outcome[R] | None] = [None] * len(items)
        self.started: dict[int, float] = {}  # running item → its start time
        self.next_item = 0
        self.finished = 0
        self.ready = threading.Condition()

    def run(self) -> list[Outcome[R]]:
        with self.ready:
            self._hire()
            seen = 0
            while self.finished < len(self.items):
                self.ready.wait(min(STALL_S, self.timeout_s))
                self._give_up_overdue()
                stalled = self.finished == seen
                seen = self.finished
                waiting = self.next_item < len(self.items)
                if waiting and (not self.started or (stalled and len(self.started) < self.workers)):
                    self._hire()
        return [outcome for outcome in self.outcomes if outcome is not None]

    def _hire(self) -> None:
        # Take the first item here, not in the new thread, so that it counts as running at once.
        index = self._take()
        if index is not None:
            threading.Thread(target=self._work, args=(index,), name="environment", daemon=True).start()

    def _take(self) -> int | None:
        if self.next_item >= len(self.items):
            return None
        index = self.next_item
        self.next_item += 1
        self.started[index] = time.perf_counter()
        return index

    def _work(self, index: int | None) -> None:
        while index is not None:
            outcome = _outcome(self.function, self.items[index])
            with self.ready:
                if self.outcomes[index] is not None:
                    return  # abandoned in the meantime, and another worker has taken over
                self._settle(index, outcome)
                index = self._take()

    def _settle(self, index: int, outcome: Outcome[R]) -> None:
        self.outcomes[index] = outcome
        del self.started[index]
        self.finished += 1
        if self.finished == len(self.items):
            self.ready.notify_all()

    def _give_up_overdue(self) -> None:
        now = time.perf_counter()
        for index, started in list(self.started.items()):
            if now - started > self.timeout_s:
                text = f"took longer than {self.timeout_s:g} s and was abandoned"
                self._settle(index, Outcome(error=text, timed_out=True, seconds=now - started))


def _outcome(function: Callable[[T], R], item: T) -> Outcome[R]:
    started = time.perf_counter()
    try:
        return Outcome(function(item), seconds=time.perf_counter() - started)
    except BaseException as problem:  # a sys.exit() in an environment must not end training either
        error, detail = one_line(problem)[:300], traceback.format_exc()[-LONGEST:]
        return Outcome(error=error, detail=detail, seconds=time.perf_counter() - started)


def beside(meanwhile: Callable[[], object], work: Callable[[], R]) -> R:
    """Do slow `work` on this thread, and call `meanwhile` again and again on another one until it is done.

    The user's code stays on the main thread, the only one that handles signals: timeouts of reward functions use them.
    """
    done = threading.Event()

    def repeat() -> None:
        while not done.wait(LOOK_S):
            meanwhile()

    with ThreadPoolExecutor(1, "meanwhile") as thread:
        repeated = thread.submit(repeat)
        try:
            return work()
        finally:
            done.set()
            repeated.result()


def describe(value: object) -> str:
    """Describe a value's type for use in a sentence."""
    return "None" if value is None else f"a {type(value).__name__}"


_ONE_ASKS = threading.Lock()


def loop() -> asyncio.AbstractEventLoop:
    """Return the background event loop, which all threads share. It starts on first use."""
    with _ONE_ASKS:
        return _running()


@functools.cache
def _running() -> asyncio.AbstractEventLoop:
    event_loop = asyncio.new_event_loop()

    def run() -> None:
        while True:
            # These two also leave the loop, and everyone else who waits for it would hang.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                event_loop.run_forever()

    threading.Thread(target=run, name="async code", daemon=True).start()
    return event_loop


async def awaited(result: Awaitable[T]) -> T:
    """Wrap any awaitable in a coroutine."""
    return await result


def submit(work: Coroutine[object, object, T]) -> Future[T]:
    """Start `work` on the background loop. Any other thread may wait for its result."""
    return asyncio.run_coroutine_threadsafe(work, loop())


def wait(work: Coroutine[object, object, T], timeout_s: float | None = None) -> T:
    """Run `work` on the background loop and return its result. Raises its exception, or TimeoutError at `timeout_s`."""
    future = submit(work)
    try:
        return future.result(timeout_s)
    except TimeoutError:
        future.cancel()
        raise

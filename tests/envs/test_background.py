"""One event loop for others' async code, whoever asks for it first."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest


def test_threads_that_ask_first_at_the_same_time_get_one_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.find_spec("grpo_tui.envs.guard")
    assert spec is not None and spec.loader is not None
    background = importlib.util.module_from_spec(spec)  # one that nobody has asked yet
    monkeypatch.setitem(sys.modules, spec.name, background)
    spec.loader.exec_module(background)
    new_loop, together = asyncio.new_event_loop, threading.Barrier(4)

    def slowly() -> asyncio.AbstractEventLoop:
        time.sleep(0.05)
        return new_loop()

    def ask(_: int) -> asyncio.AbstractEventLoop:
        together.wait()
        return background.loop()

    monkeypatch.setattr(asyncio, "new_event_loop", slowly)
    with ThreadPoolExecutor(4) as threads:
        loops = set(threads.map(ask, range(4)))
    for loop in loops:
        loop.call_soon_threadsafe(loop.stop)
    assert len(loops) == 1

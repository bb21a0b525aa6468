"""Read a run without blocking the user: cheap reads at once, the others on a separate thread."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from ...engine.imports.readers import open_reader, start_following
from ...engine.runs.read.reader import RunReader

T = TypeVar("T")


class Reads:
    """Two readers of one run: `now` reads by key in milliseconds, `later` does everything else on a thread.

    A separate process indexes and follows a dump. One thread answers in order, so a burst of keys opens no more
    connections. SQLite binds a connection to its thread, hence two readers.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.now = open_reader(self.path)
        self._thread: ThreadPoolExecutor | None = None
        self._reader: RunReader | None = None
        self._indexer: subprocess.Popen[bytes] | None = None

    async def later(self, ask: Callable[[RunReader], T]) -> T:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reads")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._ask, ask)

    def _ask(self, ask: Callable[[RunReader], T]) -> T:
        if self._reader is None:
            self._reader = open_reader(self.path)
            self._indexer = start_following(self.path)
        return ask(self._reader)

    def _end(self) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._indexer is not None:
            self._indexer.terminate()
            self._indexer.wait()
        self._reader = self._indexer = None

    def close(self) -> None:
        """Close both readers, `later` after its current read. Screens that still show the run reopen them."""
        self.now.close()
        if self._thread is not None:
            self._thread.submit(self._end)

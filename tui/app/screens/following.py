"""A screen that follows a run: a thread reads its data, and again every second while the run is active.

For an ended run only a few small files are checked, because someone may resume it.
"""

from __future__ import annotations

import asyncio

from ....engine.runs.control.status import look
from ....engine.runs.errors import RecordError
from ....engine.runs.read.reader import RunReader
from ..data import Reads
from ..live_data import FOLLOW_SECONDS, Reading, read
from .base import AppScreen

_LOG_LINES = 60


class FollowsRun(AppScreen):
    """A screen that follows a run. Subclasses read more in `read_more` and display it in `show`."""

    def __init__(self, reads: Reads) -> None:
        super().__init__()
        self.reads = reads
        self.shown: Reading | None = None
        self._busy = False
        self._outdated = False
        """Whether the read in progress is outdated, and must be repeated before anything is shown."""

    def read_more(self, reader: RunReader, reading: Reading) -> object:
        """Read extra data for `show`. This runs on the reading thread."""
        raise RuntimeError(f"{type(self).__name__} must implement read_more")

    def show(self, shown: Reading, extra: object) -> None:
        raise RuntimeError(f"{type(self).__name__} must implement show")

    def show_problem(self, problem: str) -> None:
        self.say(problem, "error")

    def on_mount(self) -> None:
        self.run_worker(self._update(), group="follow")
        self.set_interval(FOLLOW_SECONDS, self.follow)

    def on_screen_resume(self) -> None:
        if self.shown is not None:
            self.follow()

    def follow(self) -> None:
        if self.app.screen is self and not self._busy:
            self.run_worker(self._refresh_status(), group="follow")

    def changed(self) -> None:
        """Read again after a change by this screen. A read in progress may predate the change."""
        self._outdated = True
        self.follow()

    async def _refresh_status(self) -> None:
        before = self.shown.info if self.shown is not None else None
        if before is not None and not before.active and before.mode != "dump":
            now = await asyncio.to_thread(look, self.reads.path)
            if (before.status, before.ended, before.name) == (now.status, now.ended, now.name):
                return  # the run neither resumed nor ended in another way
        await self._update()

    def _read(self, reader: RunReader) -> tuple[Reading, object]:
        reading = read(reader, _LOG_LINES)
        return reading, self.read_more(reader, reading)

    async def _update(self) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            while True:
                self._outdated = False
                shown, extra = await self.reads.later(self._read)
                if not self._outdated:
                    break
            self.shown = shown
        except RecordError as error:
            self.show_problem(str(error))
            return
        finally:
            self._busy = False
        if self.is_attached:
            self.show(shown, extra)

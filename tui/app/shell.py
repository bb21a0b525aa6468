"""The part of the app that its screens use: their runs, the way from one to another, and memory between starts.

The memory holds the theme, the last view of each run, and whether the first-run hint was seen. It is one small JSON
file under `$XDG_STATE_HOME/grpo-tui` (or `~/.local/state/grpo-tui`). Losing it costs nothing, so all its errors are
ignored.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from ...configs.location import user_folder
from ...engine.runs.durable import replace_file
from ...engine.runs.errors import RecordError
from ..text import line
from .data import Reads
from .destinations import Destination, Live, Runs
from .inside_textual import OwnOutputApp
from .theme import Palette


class Memory:
    """A dictionary stored on disk."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or user_folder("XDG_STATE_HOME", ".local/state") / "app.json"
        self.values: dict[str, object] = {}
        with contextlib.suppress(OSError, ValueError):
            loaded = json.loads(self.path.read_text(encoding="utf-8"))
            if isinstance(loaded, dict):
                self.values = loaded

    def get(self, key: str, default: object = None) -> Any:
        value = self.values.get(key, default)
        return value if default is None or isinstance(value, type(default)) else default

    def put(self, key: str, value: object) -> None:
        self.values[key] = value

    def run(self, run_id: str) -> dict[str, Any]:
        """Return the stored values of one run. Changes to them are kept."""
        runs = self.values.setdefault("runs", {})
        if not isinstance(runs, dict):
            runs = self.values["runs"] = {}
        kept = runs.pop(run_id, {})
        runs[run_id] = kept if isinstance(kept, dict) else {}
        while len(runs) > 50:
            del runs[next(iter(runs))]
        return runs[run_id]

    def save(self) -> None:
        with contextlib.suppress(OSError, TypeError, ValueError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, json.dumps(self.values).encode(), wait=False)


class Shell(OwnOutputApp):
    """The app for its screens: its runs, its memory, and the way from screen to screen."""

    palette: Palette

    def __init__(self, runs_dir: Path, memory: Memory | None) -> None:
        super().__init__()
        self.runs_dir = Path(runs_dir)
        self.memory = memory or Memory()
        self._reads: dict[str, Reads] = {}
        self.save = self.memory.save
        self.clock: Callable[[], float] = time.time
        """The clock for ages, in seconds since the epoch."""

    def reads(self, run: Path | str) -> Reads:
        key = str(run)
        if key not in self._reads:
            self._reads[key] = Reads(run)
        return self._reads[key]

    def forget_run(self, run: Path | str) -> None:
        reads = self._reads.pop(str(run), None)
        if reads is not None:
            reads.close()

    def open(self, destination: Destination, *, replace: bool = False) -> None:
        """Open a screen on top of the current one; with `replace`, in its place."""
        above = [getattr(screen, "destination", None) for screen in reversed(self.screen_stack)]
        one = isinstance(destination, (Live, Runs))  # a single dashboard of a run, a single list
        if not replace and destination in (above if one else above[1:2]):
            for _ in range(above.index(destination)):
                self.go_back()  # it is still there, in its last state
            return
        try:
            screen = self.screen_for(destination)
        except RecordError as error:
            self.notify(line(str(error), 300), severity="error", timeout=4, markup=False)
            return
        screen.destination = destination
        if replace:
            self.replace_screen(screen)
        else:
            self.push_screen(screen)

    def screen_for(self, destination: Destination) -> Any:
        """Return a new screen. Raises RecordError if the run's record cannot be opened."""
        module, name = destination.screen
        return getattr(import_module(f".screens.{module}", __package__), name)(*destination.values(self.reads))

    def go_back(self) -> None:
        if len(self.screen_stack) > 1:
            n, come_back = getattr(self.screen, "n", 0), getattr(self.screen_stack[-2], "come_back_from", None)
            self.pop_screen()
            if n and come_back is not None:
                come_back(n)
        elif getattr(self.screen, "view", "") != "runs":
            self.open(Runs(), replace=True)

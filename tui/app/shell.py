"""The interface of the app for its screens, and its memory between starts.

The memory holds the theme, the last view of each run, and whether the first-run hint was seen. It is one small JSON
file under `$XDG_STATE_HOME/grpo-tui` (or `~/.local/state/grpo-tui`). Losing it costs nothing, so all its errors are
ignored.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ...configs.location import user_folder
from ...engine.runs.durable import replace_file
from .data import Reads
from .destinations import Destination
from .theme import Palette

_MOST_RUNS = 50


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
        while len(runs) > _MOST_RUNS:
            del runs[next(iter(runs))]
        return runs[run_id]

    def save(self) -> None:
        with contextlib.suppress(OSError, TypeError, ValueError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, json.dumps(self.values).encode(), wait=False)


class Shell(Protocol):
    """The app's interface for its screens."""

    runs_dir: Path
    palette: Palette
    memory: Memory
    clock: Callable[[], float]
    """The clock for ages, in seconds since the epoch."""

    def open(self, destination: Destination, *, replace: bool = False) -> None:
        """Open a screen on top of the current one; with `replace`, in its place."""

    def go_back(self) -> None:
        """Go to the previous screen; from the first screen of a run, to the list of runs."""

    def reads(self, run: Path | str) -> Reads: ...

    def forget_run(self, run: Path | str) -> None:
        """Close the readers of a run, for example before it is deleted."""

"""Values that survive between starts: theme, last view of each run, and whether the first-run hint was seen.

One small JSON file under `$XDG_STATE_HOME/grpo-tui` (or `~/.local/state/grpo-tui`). Losing it costs nothing, so every
trouble with it is ignored.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from ...engine.runs.durable import replace_file

_MOST_RUNS = 50


def state_file() -> Path:
    """Return the path of the state file."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "grpo-tui" / "app.json"


class Memory:
    """A dictionary stored on disk."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or state_file()
        self.values: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            loaded = json.loads(self.path.read_text(encoding="utf-8"))
            if isinstance(loaded, dict):
                self.values = loaded

    def get(self, key: str, default: Any = None) -> Any:
        value = self.values.get(key, default)
        return value if default is None or isinstance(value, type(default)) else default

    def put(self, key: str, value: Any) -> None:
        self.values[key] = value

    def run(self, run_id: str) -> dict[str, Any]:
        """Return the stored values of one run. Changes are kept."""
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

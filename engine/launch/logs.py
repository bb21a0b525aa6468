"""Read the last lines of the logs of a run's processes."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..runs.paths import LOGS
from ..runs.types import RunInfo

_TAIL_BYTES = 1 << 16
_REASON = re.compile(r"error: |Fatal Python error|([A-Za-z_]+\.)*[A-Za-z_]*(Error|Exception|Interrupt)\b")
_LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S* [A-Z]+ ")
"""A line of the process's own log. None follows the error that ends a process."""


def log_path(run: RunInfo, name: str | None = None) -> Path | None:
    """Return the log of process `name`, or the newest log; None if there is none."""
    folder = Path(run.path) / LOGS
    if name is not None:
        path = folder / f"{name}.log"
        return path if path.exists() else None
    try:
        logs = [(entry.stat().st_mtime, entry.path) for entry in os.scandir(folder) if entry.name.endswith(".log")]
    except OSError:
        return None
    return Path(max(logs)[1]) if logs else None


def tail_log(run: RunInfo, n: int = 20, name: str | None = None) -> list[str]:
    """Return the last `n` lines of a log, reading only its end. The text may hold anything: show it literally."""
    path = log_path(run, name)
    if path is None or n <= 0:
        return []
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            data = file.read(_TAIL_BYTES)
    except OSError:
        return []
    lines = data.decode("utf-8", "replace").split("\n")
    if size > _TAIL_BYTES:
        lines = lines[1:]  # the first line is cut off
    # A progress bar redraws its line. A terminal would show only the text after the last carriage return.
    shown = [line.rstrip("\r").rsplit("\r", 1)[-1] for line in lines]
    while shown and not shown[-1].strip():
        shown.pop()
    return shown[-n:]


def last_error(run: RunInfo, name: str | None = None) -> str | None:
    """Return the log line of the error that ended the process (`ValueError: …`, `error: …`), or None."""
    for line in reversed(tail_log(run, 200, name)):
        if _LOGGED.match(line):
            return None
        if _REASON.match(line):
            return line
    return None

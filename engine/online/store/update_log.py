"""`update_audit.log` and `update_contribution.jsonl`: append-only logs that contain each update once.

Both are written from the queue's journal. Every line has its journal number, so an incomplete last line can be cut off
and missing lines appended after a crash.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from .update_queue import JournalRow

_TAIL_BYTES = 1 << 20


class UpdateLogs:
    """The two logs of a run. `append` raises OSError if they cannot be written, and can be repeated without loss."""

    def __init__(self, run_dir: Path) -> None:
        self.audit = run_dir / "update_audit.log"
        self.contribution = run_dir / "update_contribution.jsonl"

    def last(self) -> dict[str, int]:
        """Return the values in the last complete lines: journal number `n`, `update`, `request` and the published
        `version`. They are 0 if there are no lines.
        """
        n, line = _last(self.contribution, _contribution_number)
        values = json.loads(line) if line else {}
        keys = {"update": "update", "request": "request", "version": "published_version"}
        found = {k: int(values.get(v) or 0) for k, v in keys.items()}
        return {"n": max(n, _last(self.audit, _audit_number)[0]), **found}

    def experiences(self, *, after: int) -> dict[str, bool]:
        """Return the task ids of updates above number `after`, with False for reverted updates."""
        found: dict[str, bool] = {}
        with contextlib.suppress(FileNotFoundError), open(self.contribution, "rb") as file:
            for line in file:
                if _contribution_number(line) is not None:
                    values = json.loads(line)
                    if int(values.get("update") or 0) > after:
                        found[str(values.get("experience"))] = values.get("rejected") is None
        return found

    def append(self, rows: Sequence[JournalRow]) -> None:
        """Append missing rows and fsync. The audit log gets all rows, the contribution log only those of updates."""
        updates = [row for row in rows if row.row.get("kind") == "update"]
        # The contribution log comes first, because `last` reads the update numbers from it.
        _append(self.contribution, updates, _contribution_number, lambda row: json.dumps({"n": row.n, **row.row}))
        _append(self.audit, rows, _audit_number, audit_line)


def audit_line(row: JournalRow) -> str:
    """Format a row as readable text: time, number, kind, and its facts as `key=value`."""
    values = row.row
    when = datetime.fromtimestamp(float(values.get("time", 0.0)), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    facts = " ".join(
        f"{k}={_short(v)}"
        for k, v in values.items()
        if k not in ("kind", "time", "message") and not isinstance(v, (list, tuple, dict)) and v is not None
    )
    message = f" {_short(values['message'])}" if values.get("message") else ""
    return f"{when} #{row.n} {values.get('kind', '?')} {facts}{message}"


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if re.fullmatch(r"[^\s\"\\=]+", text) and text.isprintable() else json.dumps(text, ensure_ascii=False)


def _audit_number(line: bytes) -> int | None:
    match = re.search(rb"#(\d+) ", line)
    return int(match[1]) if match else None


def _contribution_number(line: bytes) -> int | None:
    try:
        return int(json.loads(line)["n"])
    except (ValueError, KeyError, TypeError):
        return None


def _whole_lines(path: Path) -> tuple[int, bytes]:
    """Return the file's length up to the end of its last complete line, and the last lines up to there."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - _TAIL_BYTES)
            file.seek(start)
            tail = file.read()
    except FileNotFoundError:
        return 0, b""
    end = tail.rfind(b"\n") + 1
    return start + end, tail[:end]


def _last(path: Path, number: Callable[[bytes], int | None]) -> tuple[int, bytes]:
    """Return the number of the last numbered line, and the line; (0, b"") if there is none."""
    for line in reversed(_whole_lines(path)[1].splitlines()):
        if (n := number(line)) is not None:
            return n, line
    return 0, b""


def _append(
    path: Path, rows: Sequence[JournalRow], number: Callable[[bytes], int | None], line: Callable[[JournalRow], str]
) -> None:
    last, _ = _last(path, number)
    text = "".join(line(row) + "\n" for row in rows if row.n > last)
    if not text:
        return
    with open(path, "ab") as file:
        length = _whole_lines(path)[0]
        if file.tell() > length:  # a line that a crash or a full disk cut short
            file.truncate(length)
            file.seek(0, os.SEEK_END)
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())

"""Trouble with a record's folder: its cause, the rows that it cost, and which of it was reported. Each is reported
once."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

TELL_AGAIN_SECONDS = 60.0
UNSTORABLE = "rows could not be stored"
"""Why rows are missing when the folder is in no trouble."""


class News(NamedTuple):
    """The explanation of a hole in the record: a sentence, why, and how many rows are missing."""

    message: str
    reason: str
    lost: int


class Trouble:
    """overflow: returns how many rows found no room in the queue. tell: receives one sentence for people."""

    def __init__(self, overflow: Callable[[], int], tell: Callable[[str], None]) -> None:
        self.now: str | None = None
        """The trouble with the folder, in words; None while it accepts writes."""
        self.attempts = 0
        """Failed attempts since the last success."""
        self.lost = 0
        """Rows that could not be stored because of their content."""
        self._overflow = overflow
        self._tell = tell
        self._told = 0
        self._told_at: dict[str, float] = {}
        self._reason = UNSTORABLE
        self._quiet = False

    @property
    def sentence(self) -> str:
        return f"{self._reason}; training goes on without its record, which resumes when it can"

    def failed(self, reason: str, locked: bool) -> None:
        """Note a failed attempt to write. A lock counts only from the second time on."""
        self.attempts += 1
        if self.now is not None or (locked and self.attempts == 1):
            return
        # A disk that is nearly full says no, yes, no, …: that is one trouble, and is told once.
        self.now = self._reason = reason
        self._quiet = self._told_lately()
        self._told_at[reason] = time.monotonic()
        if not self._quiet:
            self._tell(self.sentence)

    def news(self) -> News | None:
        """Return the report that is due now: once for a spell of trouble, at most once a minute."""
        lost = self._untold()
        loud = self.now is not None and not self._quiet
        if not loud and (self._told_lately() or not lost):
            return None
        message = f"{self._reason}: {lost} rows are missing from the record"
        if not lost:
            message = f"{self._reason}, but nothing was lost"
        return News(message, self._reason, lost)

    def last_news(self) -> bool:
        """Return whether a report is left for the end."""
        if not self._untold() or self.now is not None:
            return False
        self._told_at.clear()
        return True

    def refused(self, rows: int) -> None:
        """Count rows that the tables did not take. Each has an event of its own."""
        self.lost += rows
        self._told += rows

    def written(self, news: News | None) -> None:
        """Note that everything given was stored, and the report with it."""
        recovered = self.now is not None
        self.now, self.attempts = None, 0
        if news is None:
            return
        self._told += news.lost
        self._told_at[news.reason] = time.monotonic()
        self._reason = UNSTORABLE
        self._tell(f"the record is written again ({news.message})" if recovered else news.message)

    def _untold(self) -> int:
        return self.lost + self._overflow() - self._told

    def _told_lately(self) -> bool:
        return time.monotonic() - self._told_at.get(self._reason, -TELL_AGAIN_SECONDS) < TELL_AGAIN_SECONDS


def explain(error: BaseException, run_dir: Path) -> str:
    """Describe a failure of the disk in one sentence."""
    text = str(error).lower()
    if not run_dir.is_dir():
        return f"the run's folder {run_dir} was removed"
    if isinstance(error, FileNotFoundError):
        return f"the record in {run_dir} was removed"
    if "full" in text or getattr(error, "errno", None) in (27, 28, 122):  # EFBIG, ENOSPC, EDQUOT
        return f"the disk of {run_dir} is full"
    if "readonly" in text or "read-only" in text or "permission" in text:
        return f"the record in {run_dir} cannot be written (read-only)"
    if "malformed" in text or "not a database" in text:
        return f"the record in {run_dir} is damaged"
    return f"the record in {run_dir} cannot be written ({error})"

"""Texts that were read before, kept over runs: recognition is by far the dearest tool, and pictures come again.

One file of JSON lines in the user's cache folder. A line is appended by a single write, so several runs may share the
file; a torn or foreign line is skipped. Nothing depends on it: any trouble with the disk leaves just the memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path

MAX_BYTES = 8 * 2**20
"""A file larger than this is replaced."""


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/grpo-tui`, by default `~/.cache/grpo-tui`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "grpo-tui"


class TextStore:
    """Strings by key, in memory and in a file. `version` names what made them: others' entries are not used."""

    def __init__(self, file: Path, version: str) -> None:
        self.file, self.version = file, version
        self._texts: dict[str, str] = {}
        self._lock = threading.Lock()
        with contextlib.suppress(OSError):
            if file.stat().st_size > MAX_BYTES:
                file.unlink()
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                self._take(line)

    def get(self, key: str) -> str | None:
        """The text kept under `key`, or None."""
        return self._texts.get(key)

    def put(self, key: str, text: str) -> None:
        """Keep a text; never raises for the disk's sake."""
        with self._lock:
            if key in self._texts:
                return
            self._texts[key] = text
            line = json.dumps([self.version, key, text], ensure_ascii=False) + "\n"
            with contextlib.suppress(OSError):
                self.file.parent.mkdir(parents=True, exist_ok=True)
                with self.file.open("ab", buffering=0) as out:
                    out.write(line.encode("utf-8", "replace"))

    def _take(self, line: str) -> None:
        try:
            version, key, text = json.loads(line)
        except (ValueError, TypeError):
            return
        if version == self.version and isinstance(key, str) and isinstance(text, str):
            self._texts[key] = text

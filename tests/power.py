"""A disk whose power goes: what a writer leaves when everything that it did not fsync may be lost, torn or reordered.

`PowerLoss` watches the calls that matter (fsync, rename, replace, unlink, mkdir, rmdir) of a writer in a folder. At
each of them `moment` is called, and may ask for a folder as the disk could look after a power cut at that instant:

- a file holds what it held at its last fsync, or what it holds now, or a part of that, or zeros;
- a folder has, name by name, an entry of its last fsync or one that it had since: renames are not ordered.
"""

from __future__ import annotations

import os
import random
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CALLS = ("fsync", "rename", "replace", "unlink", "remove", "mkdir", "rmdir")


class PowerLoss:
    """The disk under `root`, which is taken to be there for good itself."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, moment: Callable[[], None]) -> None:
        self.root = root.resolve()
        self._moment = moment
        self._lock = threading.RLock()
        self._open: dict[int, int] = {}
        """A descriptor of each file seen, so that no number is given twice."""
        self._content: dict[int, bytes] = {}
        self._synced: dict[int, bytes] = {}
        self._entries: dict[int, dict[str, int]] = {}
        self._since: dict[int, dict[str, set[int | None]]] = {}
        """For each folder and name, what it led to at the last fsync and since."""
        self._look(root)
        self._since[root.stat().st_ino] = {n: {i} for n, i in self._entries[root.stat().st_ino].items()}
        for name in CALLS:
            monkeypatch.setattr(os, name, self._watched(getattr(os, name), name == "fsync"))

    def close(self) -> None:
        """Let go of the files."""
        for descriptor in self._open.values():
            os.close(descriptor)

    def _watched(self, call: Any, syncs: bool) -> Any:
        def watched(*arguments: Any, **options: Any) -> Any:
            if not self._ours(arguments[0], options.get("dir_fd")):
                return call(*arguments, **options)
            with self._lock:
                self._look(self.root)
                self._moment()
                result = call(*arguments, **options)
                if syncs:
                    self._look(self.root)
                    self._sync(os.fstat(arguments[0]))
                return result

        return watched

    def _ours(self, target: Any, folder: int | None) -> bool:
        number = target if isinstance(target, int) else folder
        path = Path(str(target) if number is None else os.readlink(f"/proc/self/fd/{number}"))
        return path.absolute().is_relative_to(self.root)

    def _sync(self, status: os.stat_result) -> None:
        if stat.S_ISDIR(status.st_mode):
            self._since[status.st_ino] = {n: {i} for n, i in self._entries.get(status.st_ino, {}).items()}
        elif status.st_ino in self._content:
            self._synced[status.st_ino] = self._content[status.st_ino]

    def _look(self, path: Path) -> int:
        """Take in the present state of a file or folder; returns its number."""
        number = path.stat().st_ino
        if number not in self._open:
            self._open[number] = os.open(path, os.O_RDONLY)
        if not path.is_dir():
            self._content[number] = path.read_bytes()
            return number
        now = {entry.name: self._look(Path(entry.path)) for entry in os.scandir(path)}
        since = self._since.setdefault(number, {})
        for name in now.keys() | since.keys():
            since.setdefault(name, {None}).add(now.get(name))
        self._entries[number] = now
        return number

    def after(self, target: Path, rng: random.Random) -> Path:
        """A folder as the disk could look after a power cut now."""
        with self._lock:
            self._look(self.root)
            self._make(self.root.stat().st_ino, target, rng)
        return target

    def _make(self, number: int, target: Path, rng: random.Random) -> None:
        if number in self._content:
            now, synced = self._content[number], self._synced.get(number)
            torn = [now[: rng.randint(0, len(now))], bytes(len(now)), b""]
            target.write_bytes(rng.choice([synced, now] if synced == now else [synced or b"", now, *torn]) or b"")
            return
        target.mkdir()
        for name, numbers in sorted(self._since.get(number, {}).items()):
            chosen = rng.choice(sorted(numbers, key=str))
            if chosen is not None:
                self._make(chosen, target / name, rng)

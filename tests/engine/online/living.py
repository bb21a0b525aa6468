"""Drives the program `lives.py`: processes that live until they are killed, one after the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from grpo_tui.engine.online.store.update_queue import UpdateQueue
from tests.forked import ForkedProcess


def counts(queue: UpdateQueue) -> dict[str, int]:
    """The number of tasks in each state."""
    states = ("queued", "taken", "applied", "rejected", "stale", "refused", "dropped")
    return {state: n for state in states if (n := len(queue.tasks(state)))}


class Lives:
    """The program `lives.py`."""

    killed = False
    """Whether the last life was."""

    def __init__(self, *options: str) -> None:
        start = subprocess.Popen if "--light" in options else ForkedProcess
        self._process = start(
            [sys.executable, "-m", "tests.engine.online.lives", *options],
            cwd=Path(__file__).parents[3],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._until("ready")

    def live(self, kind: str, folder: Path, kill_at: int | None, **options: Any) -> list[str]:
        """One life; returns what it said."""
        assert self._process.stdin is not None
        asked = {"kind": kind, "folder": str(folder), "kill_at": kill_at, **options}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return self._until("killed", "ended")

    def _until(self, *last: str) -> list[str]:
        assert self._process.stdout is not None
        said = []
        while (line := self._process.stdout.readline().strip()) not in last:
            assert self._process.poll() is None or line, "the program died"
            assert not line.startswith("failed"), json.loads(line.removeprefix("failed "))
            said.append(line)
        self.killed = line == "killed"
        return said

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)


class Machines:
    """Two machines, each with a run's folder of its own, and what all of it must come to."""

    def __init__(self, lives: Lives, home: Path, online: dict[str, Any]) -> None:
        self.lives = lives
        self.online = online
        self.folders = [home / "a", home / "b"]
        for folder in self.folders:
            folder.mkdir()
        self.acknowledged: list[str] = []
        self.versions = [0]
        self.kills = 0
        self.asked = 0

    def live(self, kind: str, machine: int, kill_at: int | None, **options: Any) -> None:
        said = self.lives.live(kind, self.folders[machine], kill_at, online=self.online, **options)
        for line in said:
            word, _, rest = line.partition(" ")
            if word == "acknowledged":
                self.acknowledged.append(rest)
            elif word == "version":
                self.versions.append(int(rest))
        self.kills += self.lives.killed

    def tasks(self, count: int) -> list[int]:
        self.asked += count
        return list(range(self.asked - count, self.asked))

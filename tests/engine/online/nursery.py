"""Processes that can be started in milliseconds and killed at any instant: torch is imported once, then forked.

Run as a program it reads lines `publish FOLDER` or `work RUN_DIR` and forks a child for each, whose pid it prints.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

from tests.forked import ForkedProcess


class Nursery:
    """The test's end of it."""

    def __init__(self) -> None:
        root = Path(__file__).parents[3]
        self._process = ForkedProcess(
            [sys.executable, "-m", "tests.engine.online.nursery"],
            cwd=root,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._line()

    def start(self, kind: str, folder: Path) -> int:
        """Start a child; returns its pid at once."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{kind} {folder}\n")
        self._process.stdin.flush()
        return int(self._line())

    def kill(self, pid: int) -> bool:
        """SIGKILL, and wait until it is gone. False when it had ended by itself."""
        assert self._process.stdin is not None
        os.kill(pid, signal.SIGKILL)
        self._process.stdin.write(f"wait {pid}\n")
        self._process.stdin.flush()
        return int(self._line()) == signal.SIGKILL

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the nursery died"
        return line


def publish(folder: Path) -> None:
    """Publish versions as fast as possible, for ever; every number of a version's tensors is its version."""
    import torch

    from grpo_tui.engine.online.store.snapshots import SnapshotWriter, prune

    writer = SnapshotWriter(folder, base_model="tiny")
    while True:
        version = writer.version + 1
        writer.publish({f"layer.{i}": torch.full((64, i + 1), float(version)) for i in range(3)})
        prune(folder, 2)


def work(run_dir: Path) -> None:
    """A real worker of a run, which ends when its queue is empty."""
    import torch

    from grpo_tui.engine.online.learn import update_worker
    from grpo_tui.engine.online.learn.policy_update import PolicyUpdater
    from grpo_tui.engine.online.learn.update_worker import UpdateWorker
    from grpo_tui.engine.runs.paths import OnlineFolder

    from .tiny import lora_model, online_config

    update_worker.MAX_ATTEMPTS = 10**6  # kills are frequent here

    torch.set_num_threads(1)
    config = online_config(
        commit_every=3,
        snapshot_every=2,
        keep_snapshots=2,
        staleness_limit=10**6,
        kl={"limit": 3e-3},  # about the first ten updates stay, and most of those after them are reverted
    )
    worker = UpdateWorker(PolicyUpdater(lora_model(), config), OnlineFolder(run_dir), config, base_model="tiny")
    while worker.step():
        pass
    worker.close()


def _main(lines: IO[str]) -> None:
    import torch  # noqa: F401 - so that children need not

    import grpo_tui.engine.online.learn.update_worker

    from . import tiny

    assert tiny and grpo_tui.engine.online.learn.update_worker
    print("ready", flush=True)
    for line in lines:
        kind, _, argument = line.strip().partition(" ")
        if kind == "wait":
            print(os.waitpid(int(argument), 0)[1] & 0x7F, flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            os.close(0)
            {"publish": publish, "work": work}[kind](Path(argument))
            os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    _main(sys.stdin)

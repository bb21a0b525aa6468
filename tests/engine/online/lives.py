"""Lives of a run's processes that end by SIGKILL at the n-th call that touches the disk; one line of JSON for each.

`python -m tests.engine.online.lives` reads {"kind", "folder", "kill_at", …} from standard input, forks a child for it
(torch is imported once) and answers whether it was killed.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

CALLS = ("open", "write", "fsync", "rename", "replace", "unlink", "mkdir")
VERSION = 1


def _touch() -> None:
    """Count one call."""


class Counted(sqlite3.Connection):
    """A connection whose statements count as calls, before and after they are carried out."""

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        _touch()
        cursor = super().execute(*arguments)
        if str(arguments[0]) == "COMMIT":
            _touch()
        return cursor


def die_at(call: int | None) -> None:
    """From now on the `call`-th call that touches the disk is the last thing that this process does."""
    left = [call or 0]

    def touch() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(function: Any) -> Any:
        def called(*arguments: Any, **options: Any) -> Any:
            touch()
            return function(*arguments, **options)

        return called

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
    global _touch
    _touch = touch
    connect = sqlite3.connect
    sqlite3.connect = lambda *a, **o: connect(*a, **{"factory": Counted, **o})  # type: ignore[assignment]


def put(folder: Path, tasks: list[int]) -> None:
    """The engine queues tasks; each that was acknowledged is noted in a file."""
    from grpo_tui.engine.online.store.folder import OnlineFolder
    from grpo_tui.engine.online.store.update_queue import UpdateQueue

    from .tiny import lora_model, make_task

    queue = UpdateQueue(OnlineFolder(folder).queue)
    model = lora_model()
    for number in tasks:
        task = make_task(model, f"request-{number}", seed=number, rows=1, length=6)
        queue.put(task.id, task.to_bytes(), VERSION)
        print(f"acknowledged {task.id}", flush=True)
    queue.close()


def work(folder: Path, steps: int) -> None:
    """A worker takes up to so many tasks; one that ends by itself closes as it should."""
    from grpo_tui.engine.online.learn.policy_update import PolicyUpdater
    from grpo_tui.engine.online.learn.update_worker import UpdateWorker
    from grpo_tui.engine.online.store.folder import OnlineFolder

    from .tiny import lora_model, online_config

    config = online_config(
        commit_every=2, snapshot_every=2, keep_snapshots=2, staleness_limit=10**6, max_attempts=10**6,
        kl={"limit": 1e-3},  # so that some updates stay and some are taken back
    )  # fmt: skip
    tell = lambda message: print(f"told {json.dumps(message)}", flush=True)  # noqa: E731
    worker = UpdateWorker(
        PolicyUpdater(lora_model(), config), OnlineFolder(folder), config, base_model="tiny", tell=tell
    )
    for _ in range(steps):
        if not worker.step():
            break
    worker.close()


def record(folder: Path) -> None:
    """The engine copies the journal into the record."""
    from grpo_tui.configs.sections.online import KLConfig
    from grpo_tui.engine.online.serve.record_keeper import RecordKeeper
    from grpo_tui.engine.online.store.folder import OnlineFolder
    from grpo_tui.engine.online.store.update_queue import UpdateQueue
    from grpo_tui.engine.runs.writer import RunWriter

    writer = RunWriter(folder, process="engine")
    queue = UpdateQueue(OnlineFolder(folder).queue)
    keeper = RecordKeeper(writer, queue, KLConfig())
    while keeper.copy_journal():
        continue
    keeper.finish()
    writer.close()
    queue.close()


KINDS: dict[str, Callable[..., None]] = {"put": put, "work": work, "record": record}


def main() -> None:
    import torch

    import grpo_tui.engine.online.learn.update_worker
    import grpo_tui.engine.online.serve.record_keeper

    from . import tiny

    assert grpo_tui.engine.online.learn.update_worker and grpo_tui.engine.online.serve.record_keeper
    torch.set_num_threads(1)
    tiny.lora_model()
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 0
            try:
                kind, folder, kill_at = asked.pop("kind"), Path(asked.pop("folder")), asked.pop("kill_at")
                die_at(kill_at)
                KINDS[kind](folder, **asked)
            except BaseException:
                print(f"failed {json.dumps(traceback.format_exc())}", flush=True)
                code = 1
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        print("killed" if os.WIFSIGNALED(status) else "ended", flush=True)


if __name__ == "__main__":
    main()

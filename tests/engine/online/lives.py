"""Lives of a run's processes that end by SIGKILL at the n-th call that touches the disk; one line of JSON for each.

`python -m tests.engine.online.lives` reads {"kind", "folder", "kill_at", …} from standard input, forks a child for it
(torch is imported once; with `--light` not at all) and answers whether it was killed. `online`: settings of the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

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
    from redis.connection import Connection, UnixDomainSocketConnection

    for kind in (Connection, UnixDomainSocketConnection):  # before a command is sent, and before its reply is read
        for name in ("send_packed_command", "read_response"):
            setattr(kind, name, counted(getattr(kind, name)))
    connect = sqlite3.connect
    sqlite3.connect = lambda *a, **o: connect(*a, **{"factory": Counted, **o})  # type: ignore[assignment]


@contextlib.contextmanager
def engine_queue(folder: Path, online: dict[str, Any]) -> Iterator[Any]:
    """What an engine reads and writes; a shared queue is brought into step before and after."""
    from grpo_tui.configs.sections.online import OnlineConfig
    from grpo_tui.engine.online.shared.outbox import Outbox, QueueLink
    from grpo_tui.engine.online.shared.redis_queue import RedisQueue
    from grpo_tui.engine.online.store.sqlite_queue import SqliteQueue
    from grpo_tui.engine.runs.paths import OnlineFolder

    config = OnlineConfig(**online)
    if not config.is_shared:
        queue = SqliteQueue(OnlineFolder(folder).queue)
        yield queue
        queue.close()
        return
    queue = Outbox(OnlineFolder(folder).queue)
    link = QueueLink(queue, RedisQueue(config.queue, config.queue_name), folder.name, poll_s=1.0)
    link.step()
    yield queue
    link.step()
    link.close()


def put(folder: Path, tasks: list[int], online: dict[str, Any]) -> None:
    """The engine queues tasks; each that was acknowledged is noted in a file."""
    from .tiny import lora_model, make_task

    with engine_queue(folder, online) as queue:
        model = lora_model()
        for number in tasks:
            task = make_task(model, f"request-{number}", seed=number, rows=1, length=6)
            queue.put(task.id, task.to_bytes(), VERSION)
            print(f"acknowledged {task.id}", flush=True)


def leading(begin: Callable[[], T]) -> T:
    """What begins as soon as the worker before it counts as gone."""
    from grpo_tui.engine.online.store.update_queue import LeaseHeld

    while True:
        try:
            return begin()
        except LeaseHeld:
            time.sleep(0.02)


def work(folder: Path, steps: int, online: dict[str, Any]) -> None:
    """A worker takes up to so many tasks; one that ends by itself closes as it should."""
    from grpo_tui.engine.online.learn import update_worker
    from grpo_tui.engine.online.learn.policy_update import PolicyUpdater
    from grpo_tui.engine.online.learn.update_worker import UpdateWorker
    from grpo_tui.engine.runs.paths import OnlineFolder

    from .tiny import lora_model, online_config

    update_worker.MAX_ATTEMPTS = 10**6  # kills are frequent here

    config = online_config(
        commit_every=2, snapshot_every=2, keep_snapshots=2, staleness_limit=10**6,
        kl={"limit": 1e-3},  # so that some updates stay and some are reverted
        **online,
    )  # fmt: skip
    tell = lambda message: print(f"told {json.dumps(message)}", flush=True)  # noqa: E731
    worker = leading(
        lambda: UpdateWorker(
            PolicyUpdater(lora_model(), config), OnlineFolder(folder), config, base_model="tiny", tell=tell
        )
    )
    for _ in range(steps):
        if not worker.step():
            break
    worker.close()


def record(folder: Path, online: dict[str, Any]) -> None:
    """The engine copies the journal into the record."""
    from grpo_tui.configs.sections.online import KLConfig
    from grpo_tui.engine.online.serve.record_keeper import RecordKeeper
    from grpo_tui.engine.online.store.update_log import UpdateLogs
    from grpo_tui.engine.runs.write.writer import RunWriter

    writer = RunWriter(folder, process="engine")
    with engine_queue(folder, online) as queue:
        keeper = RecordKeeper(writer, queue, KLConfig(), logs=UpdateLogs(folder))
        while keeper.copy_journal():
            continue
        keeper.finish()
        writer.close()


def send(folder: Path, tasks: list[int], online: dict[str, Any]) -> None:
    """`put` and `record` without torch: the engine's record is a file of journal numbers."""
    copied = folder / "recorded.jsonl"
    with engine_queue(folder, online) as queue:
        for number in tasks:
            queue.put(f"task-{number}", b"%d" % number, VERSION)
            print(f"acknowledged task-{number}", flush=True)
        lines = copied.read_text().splitlines(keepends=True) if copied.exists() else []
        whole = [line for line in lines if line.endswith("\n")]
        last = json.loads(whole[-1])["n"] if whole else 0
        text = "".join(whole) + "".join(json.dumps({"n": r.n, **r.row}) + "\n" for r in queue.journal(last))
        with open(copied, "w") as file:
            file.write(text)


def learn(folder: Path, steps: int, online: dict[str, Any]) -> None:
    """`work` without torch: the policy is the list of the tasks it was taught."""
    from grpo_tui.configs.sections.online import OnlineConfig
    from grpo_tui.engine.online.shared.exchange import Exchange
    from grpo_tui.engine.online.shared.redis_queue import RedisQueue
    from grpo_tui.engine.online.store.update_queue import Settled
    from grpo_tui.engine.runs.durable import make_folder, write_synced
    from grpo_tui.engine.runs.paths import OnlineFolder

    config, place = OnlineConfig(**online), OnlineFolder(folder)
    queue = RedisQueue(config.queue, config.queue_name, lease_s=config.lease_s, process=os.urandom(8).hex())
    leading(queue.lead)
    exchange = Exchange(config.shared_files or "")
    named = queue.get("state")
    learnt = json.loads(exchange.read(f"states/{named}") or b"") if named else []
    while steps > 0:
        taken = [task for _ in range(2) if (task := queue.take()) is not None]
        if not taken:
            break
        learnt += [task.id for task in taken]
        name = f"state.{len(learnt)}-{time.time_ns()}.json"
        make_folder(place.state)
        write_synced(place.state / name, json.dumps(learnt).encode())
        exchange.put(place.state / name, f"states/{name}")
        rows = [{"kind": "update", "experience": task.id} for task in taken]
        version = queue.get("published", 0) + 1
        queue.settle([Settled(t.id, "applied") for t in taken], rows, {"state": name, "published": version})
        print(f"version {version}", flush=True)
        steps -= len(taken)
    queue.close()


KINDS: dict[str, Callable[..., None]] = {"put": put, "work": work, "record": record, "send": send, "learn": learn}


def _import_everything() -> None:
    import torch

    import grpo_tui.engine.online.learn.update_worker
    import grpo_tui.engine.online.serve.record_keeper

    from . import tiny

    assert grpo_tui.engine.online.learn.update_worker and grpo_tui.engine.online.serve.record_keeper
    torch.set_num_threads(1)
    tiny.lora_model()


def _import_the_queue() -> None:
    import fsspec
    from redis.connection import Connection

    import grpo_tui.engine.online.shared.exchange
    import grpo_tui.engine.online.shared.outbox

    fsspec.filesystem("file")
    assert Connection and grpo_tui.engine.online.shared.exchange and grpo_tui.engine.online.shared.outbox
    assert "torch" not in sys.modules


def main() -> None:
    from grpo_tui.engine.online.store.update_queue import QueueError

    if "--light" in sys.argv:
        _import_the_queue()
    else:
        _import_everything()
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 0
            try:
                kind, folder, kill_at = asked.pop("kind"), Path(asked.pop("folder")), asked.pop("kill_at")
                die_at(kill_at)
                KINDS[kind](folder, **{"online": {}, **asked})
            except QueueError as error:  # of a server that stops and restarts
                print(f"{'told' if asked.get('online') else 'failed'} {json.dumps(str(error))}", flush=True)
            except BaseException:
                print(f"failed {json.dumps(traceback.format_exc())}", flush=True)
                code = 1
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        print("killed" if os.WIFSIGNALED(status) else "ended", flush=True)


if __name__ == "__main__":
    main()

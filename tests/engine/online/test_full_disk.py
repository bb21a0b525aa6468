"""A real file system without room: engine and worker wait, say so, and go on when there is room."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from grpo_tui.engine.online.learn.update_worker import Working
from grpo_tui.engine.online.serve import assembly, enqueuer
from grpo_tui.engine.online.serve.enqueuer import Enqueuer
from grpo_tui.engine.online.store.sqlite_queue import SqliteQueue
from grpo_tui.engine.online.store.update_queue import QueueError
from grpo_tui.engine.runs.control.requests import RunRequest
from grpo_tui.engine.runs.paths import OnlineFolder

from .test_update_worker import Run
from .tiny import lora_model, make_task


class Disk:
    """A file system of a few megabytes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self) -> None:
        """Leave no room at all."""
        with open(self._filler, "wb", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    continue

    def free(self) -> None:
        """Make room again."""
        self._filler.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no file system can be mounted here (it needs root)")
    yield Disk(folder)
    subprocess.run(["umount", "-l", str(folder)], check=True)


def wait_for(condition: Any) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_an_engine_that_is_resumed_on_a_full_disk_waits(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "AGAIN_S", 0.02)
    folder = OnlineFolder(disk.folder / "run")
    SqliteQueue(folder.queue).close()
    disk.fill()
    told: list[str] = []
    control: Any = SimpleNamespace(poll=list)
    opened: list[SqliteQueue | None] = []
    open_it = partial(SqliteQueue, folder.queue)
    thread = threading.Thread(target=lambda: opened.append(assembly.patiently(open_it, control, told.append)))
    thread.start()
    wait_for(lambda: told)
    assert "Serving waits until this is fixed" in told[0] and not opened
    disk.free()
    thread.join(60)
    assert opened[0] is not None and opened[0].depth() == 0
    assert told[1:] == ["The disk can be written to again: serving continues."]


def test_tasks_and_updates_wait_for_room_and_none_is_lost(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueuer, "AGAIN_S", 0.02)
    run, told = Run(disk.folder / "run"), list[str]()
    puts = Enqueuer(SqliteQueue(run.folder.queue), tell=told.append)
    run.put(2)
    assert run.worker.step()
    disk.fill()
    puts.put(make_task(lora_model(), "request-7", seed=7, rows=1, length=6))
    with pytest.raises(QueueError, match="full"):  # the worker's loop waits and asks again
        run.worker.step()
    assert not run.worker.ledger.commit()  # the update that was made stays in memory
    said: Any = SimpleNamespace(writer=Mock(), control=Mock())
    Working._handle(said, RunRequest("1", "stop", 0.0), run.worker)
    assert "could not be saved" in said.control.acknowledge.call_args[0][1]
    wait_for(lambda: told)
    assert "wait in memory" in told[0] and any("cannot be committed" in m for m in run.told)
    assert run.contributions() == []
    disk.free()
    puts.flush()
    while run.worker.step():
        pass
    assert [r["experience"] for r in run.contributions()] == ["request-0", "request-1", "request-7"]
    assert "0 tasks were lost" in told[-1]
    run.worker.close()
    puts.close()

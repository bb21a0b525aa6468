"""Each file that a learning run loads again, in turn truncated, emptied, deleted or overwritten: what is whole goes on.

Whatever happens: no version goes back, no weight is served or learnt from that was never there, no update number is
used twice, learning continues, and what was lost is said.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.damage import DAMAGE
from grpo_tui.engine.online.learn import update_worker
from grpo_tui.engine.online.learn.worker_state import states
from grpo_tui.engine.online.store.snapshots import SnapshotReader, pointed_version
from grpo_tui.engine.online.store.sqlite_queue import SqliteQueue
from grpo_tui.engine.online.store.update_queue import QueueDamaged, QueueError
from grpo_tui.engine.runs.paths import OnlineFolder

from .living import counts
from .test_update_worker import Run
from .tiny import lora_model, make_task, online_config


def _newest_snapshot(run_dir: Path) -> str:
    return f"snapshots/ema_model_snapshot.v{pointed_version(run_dir / 'snapshots')}"


FILES: dict[str, Callable[[Path], str]] = {
    "queue": lambda run_dir: "online/queue.sqlite",
    "state": lambda run_dir: f"online/state/{states(run_dir / 'online' / 'state')[0][1]}",
    "state before": lambda run_dir: f"online/state/{states(run_dir / 'online' / 'state')[1][1]}",
    "snapshot": lambda run_dir: f"{_newest_snapshot(run_dir)}.safetensors",
    "manifest": lambda run_dir: f"{_newest_snapshot(run_dir)}.json",
    "pointer": lambda run_dir: "snapshots/latest_model_version.txt",
    "audit log": lambda run_dir: "update_audit.log",
    "contributions": lambda run_dir: "update_contribution.jsonl",
}
SILENT = {"state before", "audit log", "contributions"}
"""Files of which nothing is loaded while the newer ones are whole; the logs are written again from the journal."""
IN_A_ROW = {"middle bytes", "last bytes"}
"""Bytes inside a row of SQLite's: a task's are found by its checksum when it is taken."""


SAME = {
    "state": {"last bytes"},
    "state before": {"emptied", "first bytes", "last bytes"},
    "snapshot": {"last bytes"},
    "manifest": {"middle bytes", "last bytes"},
    "pointer": {"middle bytes", "last bytes"},
    "audit log": {"emptied", "first bytes", "last bytes"},
    "contributions": {"emptied", "first bytes", "last bytes"},
}
"""Damage that is found as other damage of that file is: by the checksum of the weights, as no JSON, or not at all."""
CASES = [
    pytest.param(file, damage, marks=[pytest.mark.stress] * (damage in SAME.get(file, ())))
    for file in FILES
    for damage in DAMAGE
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[torch.Tensor], int]:
    """A run of ten updates and its parameters after each commit, live and smoothed."""
    folder = tmp_path_factory.mktemp("made") / "run"
    run = Run(folder)
    known = [_flat(run.worker.updater.ema)]
    run.put(12)
    for _ in range(5):
        run.work(2)
        known += [run.weights(), _flat(run.worker.updater.ema)]
    run.worker.close()
    return folder, known, pointed_version(run.folder.snapshots) or 0


def _flat(tensors: Any) -> torch.Tensor:
    return torch.cat([t.detach().flatten() for t in tensors.values()])


@pytest.mark.parametrize(("file", "damage"), CASES)
def test_whatever_is_damaged_the_newest_whole_thing_goes_on(
    made: tuple[Path, list[torch.Tensor], int], tmp_path: Path, file: str, damage: str
) -> None:
    source, known, version = made
    run_dir = tmp_path / "run"
    shutil.copytree(source, run_dir)
    DAMAGE[damage](run_dir / FILES[file](run_dir))

    run = Run(run_dir)
    assert any(torch.equal(run.weights(), k) for k in known)
    served = SnapshotReader(run.folder.snapshots).newer_than(0)
    assert served is not None and served.version >= version
    parameters = run.worker.updater.parameters
    content = served.tensors()
    assert any(torch.equal(torch.cat([content[n].flatten() for n in parameters]), k) for k in known)
    if file not in SILENT and not (file == "queue" and damage in IN_A_ROW):
        assert run.told, f"nothing was said of the {file} {damage}"
    run.put(2, start=100)
    while run.worker.step():
        pass
    run.worker.close()
    assert (pointed_version(run.folder.snapshots) or 0) > version
    updates = []
    for line in (run_dir / "update_contribution.jsonl").read_bytes().splitlines():
        try:
            updates.append(json.loads(line))
        except ValueError:
            continue  # the damaged line itself
    numbers = [u["update"] for u in updates]
    assert numbers == sorted(set(numbers)) and numbers[-1] >= 10 + 2
    assert [u["experience"] for u in updates][-2:] == [f"request-{i}" for i in range(100, 102)]


def test_all_snapshots_gone_the_last_validated_is_published_under_the_next_number(
    made: tuple[Path, list[torch.Tensor], int], tmp_path: Path
) -> None:
    source, _, version = made
    shutil.copytree(source, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "snapshots")
    run = Run(tmp_path / "run")
    assert pointed_version(run.folder.snapshots) == version + 1
    assert any(f"Version {version} is missing" in m for m in run.told)


def test_state_and_queue_gone_the_newest_snapshot_is_the_truth(
    made: tuple[Path, list[torch.Tensor], int], tmp_path: Path
) -> None:
    source, _, version = made
    shutil.copytree(source, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "online")
    run = Run(tmp_path / "run")
    with SnapshotReader(run.folder.snapshots).open(version) as newest:
        content = newest.tensors()
    assert all(torch.equal(run.worker.updater.ema[n], t) for n, t in content.items())
    assert any("The update queue was lost" in m and f"from snapshot {version}" in m for m in run.told)


def test_no_update_number_is_used_twice_after_two_restarts_at_an_older_state(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", snapshot_every=100)
    run.put(6)
    run.work(6)
    (_, newest), (_, older) = states(run.folder.state)[:2]
    run.worker.queue.close()
    for path in [*run.folder.queue.parent.glob("queue.sqlite*"), run.folder.state / newest]:
        path.unlink()
    run.abandon()
    assert run.worker.queue.get("state") == older
    run.abandon()  # nothing was learnt in between
    run.put(2, start=6)
    run.work(2)
    run.worker.close()
    assert [r["update"] for r in run.contributions()] == list(range(1, 9))


@pytest.mark.parametrize("commits", [1, 2])
def test_a_queue_that_lost_its_last_commits_repeats_nothing(tmp_path: Path, commits: int) -> None:
    """SQLite takes what is left of a damaged log for all there was: the queue of some commits ago."""
    run = Run(tmp_path / "run")
    run.put(8)
    run.work(6 - 2 * commits)
    run.worker.queue.close()
    older = run.folder.queue.read_bytes()
    run.abandon()
    run.work(2 * commits)
    learnt, version = run.weights(), pointed_version(run.folder.snapshots) or 0
    run.worker.abandon()
    run.folder.queue.write_bytes(older)
    run.worker = run.start()
    assert torch.equal(run.weights(), learnt)
    assert any("The update queue has lost its last commits" in m for m in run.told)
    run.abandon()  # what was found is settled: nothing is told or lost again
    assert sum("has lost its last commits" in m for m in run.told) == 1
    while run.worker.step():
        pass
    run.worker.close()
    assert [r["experience"] for r in run.contributions()] == [f"request-{i}" for i in range(8)]
    assert [r["update"] for r in run.contributions()] == list(range(1, 9))
    assert counts(SqliteQueue(run.folder.queue)) == {"applied": 8}
    assert (pointed_version(run.folder.snapshots) or 0) >= version


def test_a_task_whose_bytes_changed_is_not_learnt_from(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.put(2)
    db = sqlite3.connect(run.folder.queue)
    payload = bytearray(db.execute("SELECT payload FROM tasks WHERE id = 'request-0'").fetchone()[0])
    payload[-5] ^= 1
    db.execute("UPDATE tasks SET payload = ? WHERE id = 'request-0'", (bytes(payload),))
    db.commit()
    db.close()
    run.work(2)
    assert dict(run.worker.queue.tasks("refused")) == {"request-0": "its data in the queue is damaged"}
    assert [r["experience"] for r in run.contributions()] == ["request-1"]


def test_a_queue_that_goes_while_it_is_used_is_named(tmp_path: Path) -> None:
    queue = SqliteQueue(tmp_path / "queue.sqlite")
    queue.put("request-1", b"x", 1)
    (tmp_path / "queue.sqlite").unlink()
    with pytest.raises(QueueDamaged, match="removed or replaced while it was in use"):
        queue.depth()


@pytest.mark.parametrize("ends", [("",), ("", "-wal", "-shm"), ("-wal",)])
def test_the_engine_goes_on_with_a_queue_that_goes_while_it_is_used(tmp_path: Path, ends: tuple[str, ...]) -> None:
    told: list[str] = []
    queue = SqliteQueue(tmp_path / "queue.sqlite", on_repaired=told.append)
    queue.put("request-1", b"x", 1)
    for end in ends:
        (tmp_path / f"queue.sqlite{end}").unlink()
    with pytest.raises(QueueError, match="removed or replaced"):
        queue.put("request-2", b"y", 1)
    assert len(told) == 1
    queue.put("request-2", b"y", 1)  # what was not acknowledged is put again
    assert [t for t, _ in queue.tasks("queued")][-1] == "request-2"
    other = SqliteQueue(tmp_path / "queue.sqlite")
    assert other.tasks("queued") == queue.tasks("queued") and len(told) == 1


def test_whoever_meets_damage_first_mends_and_the_other_goes_on_with_the_same_queue(tmp_path: Path) -> None:
    path, told = tmp_path / "queue.sqlite", []
    engine = SqliteQueue(path, on_repaired=told.append)
    for i in range(200):
        engine.put(f"request-{i}", os.urandom(20_000), 1)  # more than SQLite's cache holds
    worker = SqliteQueue(path)
    assert worker.take() is not None
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with open(path, "r+b") as file:  # in place, as a failing disk would
        file.seek(2_000_000)
        file.write(os.urandom(200_000))
    with pytest.raises(QueueDamaged):
        while worker.take() is not None:
            pass
    worker.close()
    worker = SqliteQueue(path, check=True)
    assert worker.repaired is not None
    waiting = worker.depth()
    assert waiting > 50
    with pytest.raises(QueueError):
        engine.depth()
    assert engine.depth() == waiting and len(told) == 1
    engine.put("another", b"z", 1)
    engine.close()
    assert worker.depth() == waiting + 1
    worker.close()
    assert SqliteQueue(path).depth() == waiting + 1  # closing the damaged file took nothing of the new one


class NoCommands:
    """A control channel whose only command is `stop`, once it is said."""

    def __init__(self) -> None:
        self.stopped = False

    def poll(self) -> list[Any]:
        return [SimpleNamespace(command="stop")] if self.stopped else []

    def acknowledge(self, *_: Any) -> None: ...


def test_the_worker_goes_on_when_its_queue_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_worker, "load_serving_policy", lambda _: (lora_model(), None))
    online = online_config(commit_every=1, snapshot_every=1)
    config: Any = SimpleNamespace(online=online, seed=0, model=SimpleNamespace(base="tiny"))
    told: list[str] = []
    writer: Any = SimpleNamespace(event=lambda kind, message, **_: told.append(message), status=lambda *_, **__: None)
    control: Any = NoCommands()
    folder = OnlineFolder(tmp_path)
    thread = threading.Thread(target=update_worker.work, args=(config, tmp_path, writer, control, False))
    thread.start()

    def learn(number: int) -> None:
        task = make_task(lora_model(), f"request-{number}", seed=number, rows=1, length=6)
        until = time.monotonic() + 60
        engine = SqliteQueue(folder.queue)
        engine.put(task.id, task.to_bytes(), pointed_version(folder.snapshots) or 0)
        while dict(engine.tasks("applied")).get(task.id) is None and time.monotonic() < until:
            time.sleep(0.02)
        assert time.monotonic() < until, told
        engine.close()

    try:
        while not folder.queue.exists():
            time.sleep(0.02)
        learn(1)
        version = pointed_version(folder.snapshots) or 0
        for end in ("", "-wal", "-shm"):
            Path(f"{folder.queue}{end}").unlink(missing_ok=True)
        while not folder.queue.exists():
            time.sleep(0.02)
        learn(2)
    finally:
        control.stopped = True
        thread.join(60)
    assert any("removed or replaced" in m for m in told) and any("from the state of update 1" in m for m in told)
    logged = [json.loads(line) for line in (tmp_path / "update_contribution.jsonl").read_text().splitlines()]
    assert [row["update"] for row in logged] == [1, 2]
    assert (pointed_version(folder.snapshots) or 0) > version


def test_what_can_be_read_of_a_damaged_queue_is_saved(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    queue = SqliteQueue(path)
    for i in range(200):
        queue.put(f"request-{i}", bytes(2000), 1)
    queue.close()
    data = bytearray(path.read_bytes())
    data[200_000:204_096] = os.urandom(4096)
    path.write_bytes(data)
    queue = SqliteQueue(path)
    saved = queue.depth()
    assert 100 < saved < 200 and queue.repaired is not None and f"{saved} tasks" in queue.repaired
    assert len(list(tmp_path.glob("queue.damaged-*.sqlite"))) == 1  # nothing is deleted
    assert SqliteQueue(path).repaired is None

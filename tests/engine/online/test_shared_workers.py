"""Workers of several machines that teach one policy: states, snapshots, logs and records, while they die."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from grpo_tui.engine.online.learn.policy_update import PolicyUpdater
from grpo_tui.engine.online.learn.update_worker import UpdateWorker
from grpo_tui.engine.online.shared import redis_queue
from grpo_tui.engine.online.shared.redis_queue import RedisQueue
from grpo_tui.engine.online.store.opening import open_store
from grpo_tui.engine.online.store.snapshots import SnapshotReader, pointed_version
from grpo_tui.engine.online.store.update_queue import LeaseHeld, LeaseLost, QueueError
from grpo_tui.engine.runs.paths import OnlineFolder
from grpo_tui.engine.runs.read.reader import RunReader
from tests.redis_server import LASTING, RedisServer, redis_server, stopped_and_restarted

from .living import Lives, Machines, counts
from .test_update_worker import Run
from .tiny import base_model

LEASE_S = 2.0
"""A busy machine renews it in time."""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server(*LASTING) as server:
        yield server


@pytest.fixture
def run_on(server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Run]:
    """A run with a worker, as on a machine of this name."""

    def begin(name: str) -> Run:
        monkeypatch.setattr(redis_queue, "_START", name)
        online = {"queue": server.url, "queue_name": tmp_path.name, "lease_s": LEASE_S}
        return Run(tmp_path / name, **online, shared_files=str(tmp_path / "shared"))

    return begin


def test_a_worker_that_was_replaced_publishes_nothing(run_on: Callable[[str], Run]) -> None:
    zombie = run_on("a")
    zombie.put(7)
    zombie.work(5)
    with pytest.raises(LeaseHeld):
        run_on("b")
    assert isinstance(zombie.worker.queue, RedisQueue)
    zombie.worker.queue._ended.set()  # as by SIGKILL or SIGSTOP: it renews nothing
    time.sleep(1.2 * LEASE_S)
    worker = run_on("b")
    assert worker.worker.updater.update == 4 and pointed_version(worker.folder.snapshots) == 2
    assert not zombie.worker.ledger.commit() and not zombie.worker.publish()
    with pytest.raises(LeaseLost):
        zombie.worker.step()
    zombie.worker.abandon()
    worker.work(3)
    assert not worker.worker.step()
    worker.worker.close()
    assert [r["update"] for r in worker.contributions()] == list(range(1, 8))
    assert (pointed_version(zombie.folder.snapshots), pointed_version(worker.folder.snapshots)) == (2, 3)
    again = run_on("a")  # brings everything from the other machine
    assert pointed_version(again.folder.snapshots) == 3 and again.contributions() == worker.contributions()
    assert torch.equal(again.weights(), worker.weights())
    again.worker.close()


def test_a_damaged_snapshot_or_another_policy_is_refused(run_on: Callable[[str], Run], tmp_path: Path) -> None:
    first = run_on("a")
    first.worker.close()
    shared = tmp_path / "shared" / "snapshots"
    (tensors,) = shared.glob("*.safetensors")
    tensors.write_bytes(tensors.read_bytes()[:-8] + b"\0" * 8)
    told: list[str] = []
    reader = open_store(OnlineFolder(tmp_path / "engine"), first.config, told.append).reader()
    assert reader.newer_than(0) is None and "does not match its checksum" in told[0]
    second = run_on("b")  # cannot have version 1 either: it publishes what it has under the next number
    assert pointed_version(second.folder.snapshots) == 2
    found = reader.newer_than(0)
    assert found is not None and found.version == 2
    found.close()
    second.worker.close()
    other = get_peft_model(base_model(64), LoraConfig(r=8, target_modules="all-linear"))
    with pytest.raises(QueueError, match=r"belongs to another policy.*online\.queue_name"):
        UpdateWorker(PolicyUpdater(other, first.config), first.folder, first.config, base_model="other")


def policy_is_killed(
    server: RedisServer, lives: Lives, home: Path, kills: int, trouble: contextlib.AbstractContextManager[None]
) -> None:
    """With real workers: updates of a real policy, states, snapshots, logs and records."""
    online = {"queue": server.url, "queue_name": home.name, "lease_s": 0.3, "shared_files": str(home / "shared")}
    machines = Machines(lives, home, online)
    pointed = [0, 0]
    rng = random.Random(kills)
    with trouble:
        while machines.kills < kills:
            kind, machine, kill_at = rng.choice(["put", "work", "work", "record"]), rng.randrange(2), rng.randrange(300)
            options: dict[str, Any] = {"put": {"tasks": machines.tasks(2)}, "work": {"steps": 6}}.get(kind, {})
            machines.live(kind, machine, kill_at + 1, **options)
            versions = [pointed_version(folder / "snapshots") or 0 for folder in machines.folders]
            assert all(new >= old for new, old in zip(versions, pointed, strict=True)), "a version went back"
            pointed = versions
    for machine in (0, 1):
        machines.live("put", machine, None, tasks=[])
    machines.live("work", 0, None, steps=10**6)
    machines.live("work", 1, None, steps=1)
    queue = RedisQueue(server.url, home.name)
    journal = queue.journal(limit=10**6)
    learnt = [row.row["experience"] for row in journal if row.row["kind"] == "update"]
    assert len(learnt) == len(set(learnt)), "learnt twice"
    assert set(machines.acknowledged) <= set(learnt), "lost"
    settled = counts(queue)
    assert settled.keys() <= {"applied", "rejected"} and sum(settled.values()) == len(learnt)
    updates = [row.row["update"] for row in journal if row.row["kind"] == "update"]
    assert updates == list(range(1, len(learnt) + 1))
    published = [row.row["version"] for row in journal if row.row["kind"] == "snapshot"]
    assert published == sorted(set(published)), "a version was published twice, or went back"
    newest = queue.get("snapshot")["version"]
    for machine, folder in enumerate(machines.folders):
        machines.live("record", machine, None)
        lines = [json.loads(line) for line in (folder / "update_contribution.jsonl").read_text().splitlines()]
        assert [line["experience"] for line in lines] == learnt, "the logs of both machines are whole"
        with RunReader(folder) as reader:
            recorded = [int(value) for _, value in reader.metrics.points("online/updates")]
            assert len(recorded) == len(set(recorded)) and set(recorded) <= set(updates)
        found = SnapshotReader(folder / "snapshots").newer_than(0)
        assert found is not None and found.version == newest  # both bring the same version
        with found:
            assert (folder / "snapshots" / found.manifest.file).read_bytes() == (
                machines.folders[0] / "snapshots" / found.manifest.file
            ).read_bytes()
    queue.close()


def test_no_kill_loses_or_doubles_what_a_policy_learns(server: RedisServer, lives: Lives, tmp_path: Path) -> None:
    policy_is_killed(server, lives, tmp_path, 8, contextlib.nullcontext())


@pytest.mark.stress
def test_many_kills_of_real_workers(lives: Lives, tmp_path: Path) -> None:
    with redis_server(*LASTING) as server:
        policy_is_killed(server, lives, tmp_path, 200, stopped_and_restarted(server))

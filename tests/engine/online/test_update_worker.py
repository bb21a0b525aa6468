"""The worker: nothing lost, nothing done twice, whenever it ends; what is wrong is set aside or waits."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from grpo_tui.engine.online.learn import update_worker
from grpo_tui.engine.online.learn.policy_update import PolicyUpdater
from grpo_tui.engine.online.learn.update_worker import UpdateWorker
from grpo_tui.engine.online.learn.worker_state import read_state
from grpo_tui.engine.online.store.snapshots import SnapshotReader, pointed_version, published_versions
from grpo_tui.engine.online.store.sqlite_queue import SqliteQueue
from grpo_tui.engine.runs.paths import OnlineFolder

from .living import counts
from .nursery import Nursery
from .tiny import lora_model, make_task, online_config


class Run:
    """A run's folder with a worker that can be abandoned (as by a kill) and started again."""

    def __init__(self, run_dir: Path, **changes: Any) -> None:
        self.folder = OnlineFolder(run_dir)
        self.config = online_config(**{"commit_every": 2, "snapshot_every": 4, **changes})
        self.told: list[str] = []
        self.worker = self.start()

    def start(self) -> UpdateWorker:
        updater = PolicyUpdater(lora_model(), self.config)
        return UpdateWorker(updater, self.folder, self.config, base_model="tiny", tell=self.told.append)

    def abandon(self) -> None:
        """What a SIGKILL leaves: locks are free, memory is gone, nothing was tidied up."""
        self.worker.writer._lock.close()
        self.worker.queue.close()
        self.worker = self.start()

    def put(self, count: int, start: int = 0, **changes: Any) -> None:
        for i in range(start, start + count):
            task = make_task(self.worker.updater.model, f"request-{i}", seed=i, rows=1, length=6, **changes)
            self.worker.queue.put(task.id, task.to_bytes(), 1)

    def work(self, tasks: int) -> None:
        for _ in range(tasks):
            assert self.worker.step()

    def wait(self) -> None:
        """The worker meets an empty queue, some time after the last task."""
        self.worker._feedback_at -= 2 * update_worker.IDLE_S
        assert not self.worker.step()

    def contributions(self) -> list[dict[str, Any]]:
        path = self.folder.run_dir / "update_contribution.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def weights(self) -> torch.Tensor:
        return torch.cat([p.detach().flatten() for p in self.worker.updater.parameters.values()])


def test_a_first_version_is_published_at_once(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert pointed_version(run.folder.snapshots) == 1
    with SnapshotReader(run.folder.snapshots).open(1) as snapshot:
        for name, tensor in snapshot.tensors().items():
            assert torch.equal(tensor, run.worker.updater.parameters[name])


def test_uncommitted_updates_are_done_again_and_committed_ones_are_not(tmp_path: Path) -> None:
    straight, broken = Run(tmp_path / "a"), Run(tmp_path / "b")
    for run in (straight, broken):
        run.put(7)
    straight.work(7)
    straight.worker.close()
    for tasks in (1, 3, 1, 2):  # abandoned with 1, 1, 0 … updates in memory only
        broken.work(tasks)
        broken.abandon()
    while broken.worker.step():
        pass
    broken.worker.close()
    assert torch.equal(broken.weights(), straight.weights())
    assert broken.worker.updater.update == 7
    for run in (straight, broken):
        rows = run.contributions()
        assert [r["experience"] for r in rows] == [f"request-{i}" for i in range(7)]
        assert [r["update"] for r in rows] == list(range(1, 8))
        assert counts(SqliteQueue(run.folder.queue)) == {"applied": 7}


def test_a_kill_between_the_first_state_and_its_commit_counts_no_update(tmp_path: Path) -> None:
    straight, broken = Run(tmp_path / "a", commit_every=1), Run(tmp_path / "b", commit_every=1)
    for run in (straight, broken):
        run.put(2)
    straight.work(2)
    ledger = broken.worker.ledger
    broken.worker.updater.apply(make_task(broken.worker.updater.model, "request-0", seed=0, rows=1, length=6))
    ledger.write_state()  # the transaction that would name this file never comes
    broken.abandon()
    broken.work(2)
    assert [r["update"] for r in broken.contributions()] == [1, 2]
    assert torch.equal(broken.weights(), straight.weights())


def test_contribution_lines_hold_what_the_requirement_asks(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.put(2)
    run.work(2)
    row = run.contributions()[0]
    assert row["experience"] == "request-0"
    assert torch.tensor(row["reward_tensor"]).shape == (1, 2, 2) and row["components"] == ["task", "penalty"]
    assert row["kl"] > 0 and row["beta"] == 0.02 and row["learning_rate"] == 1e-3
    assert row["grad_norm"] >= row["clipped_grad_norm"] > 0
    assert (row["policy_version"], row["published_version"]) == (0, 1)
    audit = (tmp_path / "update_audit.log").read_text()
    assert " update experience=request-0 " in audit and " snapshot action=published version=1 " in audit


def test_poison_is_refused_logged_and_set_aside_not_retried(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.put(1)
    run.put(1, start=1, rewards=torch.full((1, 2, 2), math.nan))
    run.worker.queue.put("request-2", b"no task at all", 1)
    run.put(1, start=3, learning_rate=0.9)
    run.put(1, start=4)
    run.work(5)
    assert not run.worker.step()
    refused = dict(run.worker.queue.tasks("refused"))
    assert list(refused) == ["request-1", "request-2", "request-3"]
    assert "NaN" in refused["request-1"] and "learning rate 0.9" in refused["request-3"]
    assert run.worker.queue.payload("request-2") == b"no task at all"
    assert [r["experience"] for r in run.contributions()] == ["request-0", "request-4"]
    assert "refused experience=request-1" in (tmp_path / "update_audit.log").read_text()
    assert len([m for m in run.told if "set aside" in m]) == 3


def test_a_task_that_kills_the_worker_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_worker, "MAX_ATTEMPTS", 2)
    run = Run(tmp_path)
    run.put(2)
    for _ in range(2):
        assert run.worker.queue.take() is not None  # taken, and the worker dies on it
        run.abandon()
    while run.worker.step():
        pass
    assert run.worker.queue.tasks("refused") == [("request-0", "the worker ended 2 times while applying it")]
    assert run.worker.queue.tasks("applied") == [("request-1", "")]


def test_a_step_whose_kl_finds_no_memory_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path)
    run.put(2)
    run.work(1)
    weights = run.weights()
    optimizer = run.worker.updater._optimizer_tensors()
    monkeypatch.setattr(PolicyUpdater, "_measure", Mock(side_effect=RuntimeError("can't allocate memory")))
    run.work(1)
    assert run.worker.queue.tasks("refused") == [("request-1", "RuntimeError: can't allocate memory")]
    assert torch.equal(run.weights(), weights)
    assert all(torch.equal(t, optimizer[n]) for n, t in run.worker.updater._optimizer_tensors().items())


def test_stale_tasks_are_dropped_and_counted(tmp_path: Path) -> None:
    run = Run(tmp_path, snapshot_every=1, staleness_limit=2)
    run.put(5)  # all answered by version 1; each update publishes a version
    run.work(5)
    found = counts(run.worker.queue)
    assert found == {"applied": 3, "stale": 2}
    assert "3 versions old, the limit is 2" in dict(run.worker.queue.tasks("stale"))["request-3"]


def test_a_full_disk_holds_updates_in_memory_until_it_is_mended(tmp_path: Path, monkeypatch: Any) -> None:
    from grpo_tui.engine.online.learn import worker_state

    run = Run(tmp_path)
    run.put(4)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    write_state = worker_state.write_state
    monkeypatch.setattr(worker_state, "write_state", full)
    run.work(3)
    assert any("cannot be committed" in m for m in run.told)
    assert pointed_version(run.folder.snapshots) == 1
    assert run.contributions() == []
    monkeypatch.setattr(worker_state, "write_state", write_state)
    run.work(1)
    assert len(run.contributions()) == 4
    assert counts(run.worker.queue) == {"applied": 4}


def test_a_damaged_state_falls_back_to_the_newest_snapshot(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.put(4)
    run.work(4)
    weights = run.worker.updater.ema
    for state in run.folder.state.glob("state.*"):
        state.write_bytes(b"damaged")
    run.abandon()
    assert any("does not match its checksum" in m and "from snapshot 2" in m for m in run.told)
    assert all(torch.equal(run.worker.updater.ema[n], weights[n]) for n in weights)
    assert run.worker.updater.update == 4
    run.put(2, start=4)
    run.work(2)
    assert [r["update"] for r in run.contributions()] == [1, 2, 3, 4, 5, 6]


def test_a_snapshot_folder_in_trouble_does_not_stop_learning(tmp_path: Path) -> None:
    run = Run(tmp_path)
    (run.folder.snapshots / "latest_model_version.txt.tmp").symlink_to("/dev/full")
    run.put(8)
    run.work(4)
    assert any("could not be published" in m for m in run.told)
    assert pointed_version(run.folder.snapshots) == 1
    assert published_versions(run.folder.snapshots) == [1]  # nothing of the attempt has a name: its number is free
    run.work(4)
    assert pointed_version(run.folder.snapshots) == 2
    with SnapshotReader(run.folder.snapshots).open(2) as served:
        assert served.manifest.update == 8
    assert len(run.contributions()) == 8


# ------------------------------------------------------------------------------------------------ the publishing guard


def judged(run: Run, ema: float) -> None:
    """The candidate that waits is measured, and the worker takes it in."""
    candidate = run.worker.queue.get("candidate")
    result = {"state": candidate["state"], "update": candidate["update"], "live": ema, "ema": ema, "delta": 0.0}
    run.worker.queue.set(validation={**result, "n": 10})
    run.worker.publisher.validate()


GUARDED: dict[str, Any] = {"snapshot_every": 2, "keep_snapshots": 2, "validation": {"every_updates": 2}}


def test_no_version_answers_before_it_was_validated(tmp_path: Path) -> None:
    run = Run(tmp_path, **GUARDED)
    start = run.weights()
    assert pointed_version(run.folder.snapshots) == 1  # the policy that the run starts from
    judged(run, 0.8)
    run.put(12)
    run.work(4)
    assert pointed_version(run.folder.snapshots) == 1  # waits
    offered = run.worker.queue.get("candidate")
    smoothed = read_state(run.folder.state / offered["state"])[0]
    run.work(2)
    judged(run, 0.78)
    with SnapshotReader(run.folder.snapshots).open(2) as served:  # as it was when it was offered, not as it is now
        assert served.manifest.update == offered["update"] == 2
        assert all(torch.equal(t, smoothed[f"ema/{n}"]) for n, t in served.tensors().items())
    assert run.worker.queue.get("candidate")["update"] == 6  # the next one was due meanwhile

    run.work(2)
    judged(run, 0.6)
    assert pointed_version(run.folder.snapshots) == 2  # it never answered
    assert any("60% success, 20% below the best validated 80%" in m for m in run.told)
    with SnapshotReader(run.folder.snapshots).open(2) as served:
        good = torch.cat([t.flatten() for t in served.tensors().values()])
    assert torch.equal(run.weights().sort().values, good.sort().values) and not torch.equal(good, start)
    row = next(r.row for r in run.worker.queue.journal(limit=10**6) if r.row["kind"] == "back")
    assert row["update"] == 6 and row["message"] == "updates 3 to 8 are reverted"
    assert row["request"] == 5  # that of the update that was judged, not where the run is by now

    run.abandon()  # all of it outlives a restart
    assert run.worker.publisher.guard.held and run.worker.publisher.guard.best == 0.8
    run.put(6, start=20)
    run.work(4)
    judged(run, 0.81)
    assert pointed_version(run.folder.snapshots) == 3 and not run.worker.publisher.guard.held
    run.put(16, start=40)
    for _ in range(4):
        run.work(4)
        judged(run, 0.81)
    assert run.worker.queue.get("validated") in published_versions(run.folder.snapshots)


def test_the_last_feedback_is_validated_although_another_candidate_waited(tmp_path: Path) -> None:
    run = Run(tmp_path, **GUARDED)
    judged(run, 0.8)
    run.put(2)
    run.put(1, start=2, facts={"feedback": "rating"})
    run.work(3)
    assert run.worker.queue.get("candidate")["update"] == 2
    run.wait()
    judged(run, 0.8)
    run.wait()
    assert run.worker.queue.get("candidate")["update"] == 3


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("waiting", [True, False])
def test_feedback_that_was_committed_before_a_kill_is_served(tmp_path: Path, guarded: bool, waiting: bool) -> None:
    run = Run(tmp_path, **(GUARDED | {"validation": {"every_updates": 8, "enabled": guarded}}))
    if not waiting and guarded:
        judged(run, 0.8)
    run.put(1, facts={"feedback": "rating"})
    run.work(1)
    run.worker.ledger.commit()
    run.abandon()
    for _ in range(2 if guarded else 0):
        run.wait()
        if run.worker.ledger.candidate is not None:
            judged(run, 0.8)
    run.wait()
    with SnapshotReader(run.folder.snapshots).open(pointed_version(run.folder.snapshots) or 0) as served:
        assert served.manifest.update == 1
    run.wait()
    assert pointed_version(run.folder.snapshots) == 2  # and only once
    assert run.worker.queue.get("candidate") is None


def test_a_version_that_is_found_after_a_kill_is_recorded_with_the_updates_in_it(tmp_path: Path) -> None:
    run = Run(tmp_path, **GUARDED)
    judged(run, 0.8)
    run.put(4)
    run.work(4)
    candidate = run.worker.queue.get("candidate")
    tensors = read_state(run.folder.state / candidate["state"])[0]
    smoothed = {n: tensors[f"ema/{n}"] for n in run.worker.updater.parameters}
    run.worker.writer.publish(smoothed, update=candidate["update"])  # and the kill comes before it is noted
    run.abandon()
    row = run.worker.queue.journal(limit=10**6)[-1].row
    assert (row["action"], row["version"], row["update"]) == ("published", 2, 2)


def test_a_rollback_after_a_restart_leads_to_the_last_validated_version(tmp_path: Path) -> None:
    run = Run(tmp_path, **GUARDED)
    judged(run, 0.8)
    run.put(4)
    run.work(2)
    judged(run, 0.8)
    with SnapshotReader(run.folder.snapshots).open(2) as served:
        good = served.tensors()
    run.worker.close()
    run.abandon()
    run.work(2)
    judged(run, 0.1)
    assert all(torch.equal(t, good[n]) for n, t in run.worker.updater.ema.items())


def test_a_version_that_a_full_disk_held_up_serves_when_there_is_room_again(tmp_path: Path) -> None:
    run = Run(tmp_path, **GUARDED)
    judged(run, 0.8)
    obstacle = run.folder.snapshots / "latest_model_version.txt.tmp"
    obstacle.symlink_to("/dev/full")
    run.put(2)
    run.work(2)
    judged(run, 0.8)
    assert pointed_version(run.folder.snapshots) == 1
    for _ in range(3):
        obstacle.symlink_to("/dev/full")
        run.worker.publisher.validate()
    assert len([m for m in run.told if "could not be published" in m]) == 1
    run.worker.publisher.validate()
    with SnapshotReader(run.folder.snapshots).open(2) as served:
        assert served.manifest.update == 2
    assert run.worker.queue.get("candidate") is None


@pytest.mark.parametrize("what", ["missing", "unreadable to validation", "unreadable once it was validated"])
def test_a_candidate_that_cannot_be_read_is_replaced_by_what_is_committed(tmp_path: Path, what: str) -> None:
    run = Run(tmp_path, **GUARDED)
    judged(run, 0.8)
    run.put(4)
    run.work(2)
    queue, publisher = run.worker.queue, run.worker.publisher
    candidate = queue.get("candidate")
    path = run.folder.state / candidate["state"]
    if what == "missing":
        path.unlink()
        publisher.validate()
    else:
        path.write_bytes(path.read_bytes()[:-8] + bytes(8))
        if what == "unreadable to validation":
            queue.set(validation={"state": path.name, "unreadable": "It is damaged."})
            publisher.validate()
        else:
            judged(run, 0.9)
    assert publisher.guard.good_update == 0 and pointed_version(run.folder.snapshots) == 1
    assert "The last committed state is validated instead." in run.told[-1]
    fresh = queue.get("candidate")
    assert fresh["state"] != path.name and fresh["update"] == 2
    tensors = read_state(run.folder.state / fresh["state"])[0]
    assert all(torch.equal(tensors[f"ema/{n}"], t) for n, t in run.worker.updater.ema.items())
    judged(run, 0.9)
    assert pointed_version(run.folder.snapshots) == 2
    run.abandon()
    assert run.worker.updater.update == 2


def test_the_user_may_accept_the_present_level(tmp_path: Path) -> None:
    run = Run(tmp_path, **GUARDED)
    judged(run, 0.8)
    run.put(6)
    run.work(2)
    judged(run, 0.5)
    assert run.worker.publisher.release() == "the next validation sets a new baseline"
    run.work(2)
    judged(run, 0.5)
    assert pointed_version(run.folder.snapshots) == 2
    assert run.worker.publisher.release() == "publishing was not on hold"


# ---------------------------------------------------------------------------------------------------- killed for real


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    started = Nursery()
    yield started
    started.close()


def kill_again_and_again(nursery: Nursery, run_dir: Path, kills: int, longest_life: float) -> None:
    """SIGKILL workers at random instants, tasks coming in all the while; then let one finish, and look at everything.

    A reader polls beside them: it must never meet a torn state, and never a version older than the one before.
    """
    rng = random.Random(kills)
    folder = OnlineFolder(run_dir)
    queue = SqliteQueue(folder.queue, limit=10**6)
    model = lora_model()
    payloads = [make_task(model, f"request-{i}", seed=i, rows=1, length=5) for i in range(8)]
    reader, version, total, done = SnapshotReader(folder.snapshots, pytest.fail), 0, 0, 0

    def put(count: int) -> None:
        nonlocal total
        for _ in range(count):
            task = payloads[total % 8]
            data = task.to_bytes().replace(b'\\"id\\": \\"request-%d\\"' % (total % 8), b'\\"id\\": \\"%09d\\"' % total)
            queue.put(f"{total:09d}", data, 1)
            total += 1

    def look() -> None:
        nonlocal version
        found = reader.newer_than(version)
        if found is not None:
            with found:
                assert found.version > version
                assert all(bool(t.isfinite().all()) for t in found.tensors().values())
                version = found.version

    while done < kills:
        put(rng.randint(1, 3))
        pid = nursery.start("work", run_dir)
        dies = time.monotonic() + rng.uniform(0, longest_life)
        while time.monotonic() < dies:
            look()
            if queue.depth() < 2:
                put(2)
            time.sleep(0.002)
        done += nursery.kill(pid)
        assert (pointed_version(folder.snapshots) or 0) >= version
    pid = nursery.start("work", run_dir)
    while queue.depth():
        look()
        time.sleep(0.01)
    time.sleep(0.5)
    nursery.kill(pid)
    look()

    found = counts(queue)
    assert found["applied"] + found["rejected"] == total  # none lost, none twice (an id settles once)
    assert found["applied"] > 0 and found["rejected"] > 0  # both ways through an update were cut short
    rows = [json.loads(line) for line in (run_dir / "update_contribution.jsonl").read_text().splitlines()]
    assert sorted(r["experience"] for r in rows) == [f"{i:09d}" for i in range(total)]  # each logged once
    assert [r["update"] for r in rows] == list(range(1, total + 1))  # and worked on once: the state counts on
    assert {r["experience"] for r in rows if r["rejected"]} == {name for name, _ in queue.tasks("rejected")}
    audit = [line for line in (run_dir / "update_audit.log").read_text().splitlines() if " update experience=" in line]
    assert len(audit) == total
    versions = [r.row["version"] for r in queue.journal(limit=10**6) if r.row.get("action") == "published"]
    assert versions == sorted(set(versions))
    assert published_versions(folder.snapshots)[-1] == pointed_version(folder.snapshots)


def test_killed_at_random_instants(nursery: Nursery, tmp_path: Path) -> None:
    kill_again_and_again(nursery, tmp_path, kills=8, longest_life=0.8)


@pytest.mark.stress
def test_killed_two_hundred_times(nursery: Nursery, tmp_path: Path) -> None:
    kill_again_and_again(nursery, tmp_path, kills=200, longest_life=1.5)

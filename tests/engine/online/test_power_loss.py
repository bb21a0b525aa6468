"""Power that goes at any instant: nothing that was acknowledged is lost, and nothing torn is accepted.

Snapshots, pointer, states and checkpoints are written on the disk of `tests/power.py`, which keeps only what was
fsynced; for the queue, SQLite's own files are cut and overwritten behind the last commit that was acknowledged.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from grpo_tui.configs.schema import RunConfig
from grpo_tui.engine.launch import start
from grpo_tui.engine.launch.settings import config_damage, read_config
from grpo_tui.engine.online.learn.worker_state import read_state, write_state
from grpo_tui.engine.online.store.snapshots import SnapshotReader, SnapshotWriter, prune
from grpo_tui.engine.online.store.sqlite_queue import SqliteQueue
from grpo_tui.engine.online.store.update_queue import Settled
from grpo_tui.engine.runs.durable import find_damage, read_json
from grpo_tui.engine.runs.health.checkpoints import newest_whole
from grpo_tui.engine.training.checkpoints import begin, commit, replacing
from tests.power import PowerLoss

CRASHES = 4
"""Disks that are looked at for each instant."""


class Instants:
    """At each instant of a writer's life, `judge` sees disks as a power cut could leave them then."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, judge: Callable[[Path], None]) -> None:
        self.root = folder / "disk"
        self.root.mkdir(parents=True)
        self._after = folder / "after"
        self._judge = judge
        self._rng = random.Random(0)
        self.judged = 0
        self._power = PowerLoss(self.root, monkeypatch, self.look)

    def look(self) -> None:
        for _ in range(CRASHES):
            self._judge(self._power.after(self._after, self._rng))
            self.judged += 1
            shutil.rmtree(self._after)


def test_snapshots_and_their_pointer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published = 0

    def judge(disk: Path) -> None:
        found = SnapshotReader(disk / "snapshots").newer_than(0)
        assert (0 if found is None else found.version) >= published
        if found is not None:
            with found:
                assert found.tensors()["w"].tolist() == [found.version] * 32
        writer = SnapshotWriter(disk / "snapshots", base_model="tiny")
        assert writer.version >= published
        writer.publish({"w": torch.zeros(1)})  # goes on from whatever is left
        writer.close()

    instants = Instants(tmp_path, monkeypatch, judge)
    writer = SnapshotWriter(instants.root / "snapshots", base_model="tiny")
    for version in (1, 2, 3):
        writer.publish({"w": torch.full((32,), float(version))})
        published = version
        instants.look()
        prune(writer.folder, 1)
    writer.close()
    assert instants.judged > 100


def test_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named: str | None = None

    def judge(disk: Path) -> None:
        if named is not None:
            tensors, values = read_state(disk / "online" / "state" / named)
            assert values == {"update": int(tensors["w"][0])}

    instants = Instants(tmp_path, monkeypatch, judge)
    for update in (1, 2):
        folder = instants.root / "online" / "state"
        name = write_state(folder, update, {"w": torch.full((8,), update)}, {"update": update})
        named = name
        instants.look()
    assert instants.judged > 15


def test_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = 0

    def judge(disk: Path) -> None:
        found, _ = newest_whole(disk / "checkpoints")
        assert (found[0] if found else 0) >= saved
        if found is not None:
            assert (found[1] / "adapter" / "weights").read_bytes() == bytes([found[0]]) * 100

    instants = Instants(tmp_path, monkeypatch, judge)
    for step in (1, 2, 3):
        temporary = begin(instants.root / "checkpoints", step)
        (temporary / "adapter").mkdir()
        (temporary / "adapter" / "weights").write_bytes(bytes([step]) * 100)
        (temporary / "state.json").write_text("{}")
        commit(temporary, keep=1)
        saved = step
        instants.look()
    assert instants.judged > 100


def test_the_result_of_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    def judge(disk: Path) -> None:
        kept = [disk / "out" / "result", *(disk / "out").glob(".*-result")]
        whole = [int((f / "weights").read_bytes()[0]) for f in kept if f.exists() and find_damage(f) is None]
        assert max(whole, default=0) >= made
        if (disk / "out" / "result").exists() and made:
            assert find_damage(disk / "out" / "result") is None

    instants = Instants(tmp_path, monkeypatch, judge)
    for turn in (1, 2):
        with replacing(instants.root / "out" / "result") as temporary:
            temporary.mkdir()
            (temporary / "weights").write_bytes(bytes([turn]) * 100)
        made = turn
        instants.look()
    assert instants.judged > 30


def test_what_a_run_is_begun_and_resumed_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = False

    def judge(disk: Path) -> None:
        if begun:
            folder = disk / "runs" / "one"
            facts = read_json(folder / "run.json")
            assert read_config(folder).seed in (1, 2) and facts["mode"] == "rft"
            assert config_damage(folder, facts["config_checksums"]) is None

    instants = Instants(tmp_path, monkeypatch, judge)
    run_dir = start._made(instants.root / "runs", "one")
    for seed in (1, 2):
        config = RunConfig.model_validate({"seed": seed})
        start._write_settings(config, run_dir, "rft", 1, resumed=begun)
        begun = True
        instants.look()
    assert instants.judged > 30


@pytest.mark.parametrize("seed", range(3))
def test_the_queue(tmp_path: Path, seed: int) -> None:
    """Behind the last commit that was acknowledged the log may hold anything; the file under it is older or newer."""
    rng = random.Random(seed)
    live, after = tmp_path / "live", tmp_path / "after"
    queue = SqliteQueue(live / "queue.sqlite")
    assert queue._db.execute("PRAGMA synchronous").fetchone()[0] == 2  # the log is fsynced at each commit
    states: dict[str, str] = {}
    for turn in range(25):
        before = (live / "queue.sqlite").read_bytes()
        length = os.path.getsize(live / "queue.sqlite-wal")
        known = dict(states)
        name = f"request-{turn}"
        if turn % 3:
            queue.put(name, rng.randbytes(rng.randint(10, 9000)), turn)
            states[name] = "queued"
        elif (task := queue.take()) is not None:
            queue.settle([Settled(task.id, "applied")], [{"kind": "update"}], {"update": turn})
            states[task.id] = "applied"
        shutil.copytree(live, after)
        (after / "queue.sqlite").write_bytes(before)  # what a checkpoint wrote was not fsynced yet
        log = (after / "queue.sqlite-wal").read_bytes()
        cut = rng.randint(length, len(log))
        tail = rng.choice([b"", bytes(len(log) - cut), rng.randbytes(len(log) - cut)])
        (after / "queue.sqlite-wal").write_bytes(log[:cut] + tail)
        (after / "queue.sqlite-shm").unlink(missing_ok=True)
        reopened = SqliteQueue(after / "queue.sqlite")
        found = {i: s for s in ("queued", "taken", "applied") for i, _ in reopened.tasks(s)}
        settled = {i for i, s in found.items() if s == "applied"}
        assert known.keys() <= found.keys() <= states.keys()
        assert {i for i, s in known.items() if s == "applied"} <= settled
        assert settled <= {i for i, s in states.items() if s == "applied"}
        reopened.close()
        shutil.rmtree(after)
    queue.close()

"""Queue, state, snapshots, logs and record together, against a model in a few lines.

hypothesis makes up histories: tasks are put, worked on and recorded by processes that are killed at any call that
touches the disk, and files are damaged in between. The model: what was acknowledged is learnt from exactly once, is
logged and recorded exactly once, and versions and update numbers only rise.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from grpo_tui.engine.online.learn.worker_state import states
from grpo_tui.engine.online.store.snapshots import SnapshotReader, pointed_version, published_versions
from grpo_tui.engine.online.store.sqlite_queue import SqliteQueue
from grpo_tui.engine.runs.paths import OnlineFolder
from grpo_tui.engine.runs.read.reader import RunReader

from .living import Lives
from .test_damage import DAMAGE

CALLS = st.none() | st.integers(1, 150)
"""At which call that touches the disk a life ends; None: by itself."""


class OnlineRun(RuleBasedStateMachine):
    """The model: `acknowledged` tasks, of which those in `maybe_lost` waited in a queue that was deleted."""

    lives: Lives

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="lives-"))
        self.folder = OnlineFolder(self.home / "run")
        self.acknowledged: set[str] = set()
        self.maybe_lost: set[str] = set()
        self.asked = 0
        self.version = 0
        self.told: list[str] = []

    def _live(self, kind: str, kill_at: int | None, **options: Any) -> None:
        for line in self.lives.live(kind, self.folder.run_dir, kill_at, **options):
            word, _, rest = line.partition(" ")
            if word == "acknowledged":
                self.acknowledged.add(rest)
            elif word == "told":
                self.told.append(json.loads(rest))

    @rule(count=st.integers(1, 4), kill_at=CALLS)
    def put(self, count: int, kill_at: int | None) -> None:
        tasks = list(range(self.asked, self.asked + count))
        self.asked += count
        self._live("put", kill_at, tasks=tasks)

    @rule(steps=st.integers(1, 6), kill_at=CALLS)
    def work(self, steps: int, kill_at: int | None) -> None:
        self._live("work", kill_at, steps=steps)

    @rule(kill_at=CALLS)
    def record(self, kill_at: int | None) -> None:
        self._live("record", kill_at)

    @precondition(lambda self: self.version > 0)
    @rule(file=st.sampled_from(["state", "snapshot", "manifest", "pointer"]), damage=st.sampled_from(sorted(DAMAGE)))
    def damage(self, file: str, damage: str) -> None:
        newest = max(published_versions(self.folder.snapshots), default=0)
        path = {
            "state": self.folder.state / next((name for _, name in states(self.folder.state)), "none"),
            "snapshot": self.folder.snapshots / f"ema_model_snapshot.v{newest}.safetensors",
            "manifest": self.folder.snapshots / f"ema_model_snapshot.v{newest}.json",
            "pointer": self.folder.snapshots / "latest_model_version.txt",
        }[file]
        if path.is_file() and path.stat().st_size:
            DAMAGE[damage](path)

    @precondition(lambda self: self.version > 0)
    @rule()
    def lose_the_queue(self) -> None:
        for end in ("", "-wal", "-shm"):
            Path(f"{self.folder.queue}{end}").unlink(missing_ok=True)
        self.maybe_lost |= self.acknowledged

    @invariant()
    def versions_only_rise(self) -> None:
        found = SnapshotReader(self.folder.snapshots).newer_than(0)
        if found is not None:
            with found:
                assert all(t.isfinite().all() for t in found.tensors().values())
        pointed = pointed_version(self.folder.snapshots)
        if pointed is not None:
            assert pointed >= self.version
            self.version = pointed

    def teardown(self) -> None:
        """Whatever happened: undisturbed lives bring everything to its end."""
        try:
            self._live("work", None, steps=1000)
            self._live("record", None)
            self.versions_only_rise()
            self._judge()
        finally:
            shutil.rmtree(self.home, ignore_errors=True)

    def _judge(self) -> None:
        log = self.folder.run_dir / "update_contribution.jsonl"
        rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        learnt = [row["experience"] for row in rows]
        assert len(learnt) == len(set(learnt)), "learnt from twice"
        assert self.acknowledged - self.maybe_lost <= set(learnt), "lost"
        numbers = [row["update"] for row in rows]
        assert numbers == sorted(set(numbers)), "update numbers do not rise"
        assert [row["n"] for row in rows] == sorted({row["n"] for row in rows})
        queue = SqliteQueue(self.folder.queue)
        assert queue.depth() == 0 and not queue.tasks("refused")
        queue.close()
        with RunReader(self.folder.run_dir) as reader:
            copied = [e.data["journal"] for e in reader.events(kinds=["snapshot"], limit=10_000)]
            assert len(copied) == len(set(copied)), "recorded twice"
            recorded = [int(value) for _, value in reader.metrics.points("online/updates")]
            assert len(recorded) == len(set(recorded)) and set(recorded) <= set(numbers)
            if not self.maybe_lost:
                assert recorded == numbers, "not recorded"


def _run(lives: Lives, examples: int, steps: int) -> None:
    OnlineRun.lives = lives
    run_state_machine_as_test(
        OnlineRun,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
            derandomize=examples < 20,
        ),
    )


def test_any_history_of_kills_and_damage(lives: Lives) -> None:
    _run(lives, 4, 10)


@pytest.mark.stress
def test_many_histories_of_kills_and_damage(lives: Lives) -> None:
    _run(lives, 150, 30)

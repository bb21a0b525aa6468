"""`kill -9` of the trainer at random instants: the record opens and says so, and resuming leaves no step out."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from grpo_tui.engine.launch.find import find_run
from grpo_tui.engine.runs.health.checkpoints import checkpoint_folder, newest_whole
from grpo_tui.engine.runs.read.reader import RunReader
from tests.forked import ForkedProcess, training_process

from .world import grpo_tui, variables, write_world

STEPS = 400
ROWS = 16
"""Trajectories of one step: 4 prompts × 4 generations."""


def wait_for_step(run: Path, step: int, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not (run / "record.sqlite").exists() or last_step(run) < step:
        assert time.monotonic() < end, (run / "logs" / "training.log").read_text()[-2000:]
        time.sleep(0.02)


def last_step(run: Path) -> int:
    with RunReader(run) as reader:
        return reader.metrics.last_step()


def contents(run: Path) -> dict[str, int]:
    """The step of each trajectory by id: what a person could have seen of the record."""
    with RunReader(run) as reader:
        assert reader.problems == []
        return {row.id: row.step for row in reader.rollouts.page(limit=100_000) if row.step is not None}


def assert_whole(run: Path) -> int:
    """Every step up to the last is there once, with all its trajectories and its metrics; gives the last step."""
    with RunReader(run) as reader:
        assert reader.problems == []
        last = reader.metrics.last_step()
        assert [s for s, _ in reader.metrics.points("train/loss")] == list(range(1, last + 1))
        rows = reader.rollouts.page(limit=100_000)
        assert Counter(row.step for row in rows) == {step: ROWS for step in range(1, last + 1)}
        assert len({row.id for row in rows}) == len(rows)
        for row in (rows[0], rows[-1]):
            assert reader.bodies.trajectory(row.n).trajectory.id == row.id
        return last


@pytest.mark.parametrize("kills", [6, pytest.param(20, marks=pytest.mark.stress)])
def test_a_killed_trainer_loses_nothing_that_was_recorded_and_resumes_exactly(project: Path, model: Path, kills: int):
    config = write_world(project, model, max_steps=STEPS, save_every=2)
    run = project / "runs" / "k"
    follower = ForkedProcess(
        [sys.executable, "-m", "grpo_tui.tui.cli", "train", config.name, "--run-id", "k"],
        cwd=project,
        env=variables(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_step(run, 3)
    pid = find_run(project / "runs", "k").pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    out, err = follower.communicate(timeout=60)
    assert follower.returncode == 1
    assert "run k crashed at step" in err and "--resume k" in out

    chance = random.Random(int.from_bytes(os.urandom(4)))
    for round in range(kills - 1):
        newest, damaged = newest_whole(checkpoint_folder(run))
        assert damaged == []
        kept = newest[0] if newest else 0
        trainer = training_process(run, resume=True, log=run / "logs" / "training.log", cwd=project)
        # Half of the kills come while the trainer loads or trains, half around the checkpoint after its first steps.
        # A resumed trainer first removes what came after its checkpoint; from then on nothing may go missing.
        cleared = last_step(run) <= kept
        begun = time.monotonic()
        earliest = begun + chance.uniform(0.0, 2.0)
        while time.monotonic() < earliest or (round % 2 and not (cleared and last_step(run) >= kept + 3)):
            cleared = cleared or last_step(run) <= kept
            log = (run / "logs" / "training.log").read_text()
            assert trainer.poll() is None and time.monotonic() < begun + 120, log[-3000:]
            time.sleep(0.02)
        time.sleep(chance.uniform(0.0, 0.3) if round % 2 else 0.0)
        seen = {id: step for id, step in contents(run).items() if cleared or step <= kept}
        trainer.kill()
        assert trainer.wait(60) == -signal.SIGKILL
        assert seen.items() <= contents(run).items()
        assert find_run(project / "runs", "k").status == "crashed"

    before = last_step(run)
    print(f"killed {kills} times up to step {before}")
    answer = grpo_tui(project, "train", "--resume", "k", "--set", f"training.max_steps={before + 3}")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert assert_whole(run) == before + 3
    assert before >= kills // 2

"""`kill -9` at any instant: what was committed is all there, and the run shows `crashed`."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.search.query import Query
from grpo_tui.engine.runs.write.writer import RunWriter

PARENT = """
# Loads everything once, then forks a writing process for each folder that it is told: a real process with a pid and
# a start time of its own, without the second that loading takes.
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from conftest import make
from grpo_tui.engine.runs.write.writer import RunWriter

def write(folder):
    writer = RunWriter(Path(folder))
    writer.status("running", total_steps=10**6)
    step = 0
    while True:
        step += 1
        writer.trajectories(step, [make(step, i) for i in range(8)])
        writer.metrics(step, {"a": step, "b": -step})
        if step % 3 == 0:
            writer.flush()
            os.write(1, b"%d %d\\n" % (os.getpid(), writer.position()))  # one write: whole or not at all

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        write(line.strip())
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(Path(__file__).parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    assert process.stdin is not None
    process.stdin.close()
    process.wait(20)


def write_and_kill(parent: subprocess.Popen[str], run_dir: Path, after: float) -> int:
    """Let a process record into a folder, kill it `after` seconds from its first step; the last step it promised."""
    assert parent.stdin is not None and parent.stdout is not None
    parent.stdin.write(f"{run_dir}\n")
    parent.stdin.flush()
    pid, promised = map(int, parent.stdout.readline().split())
    time.sleep(after)
    os.kill(pid, signal.SIGKILL)
    while (line := parent.stdout.readline().split()) != ["gone"]:
        promised = int(line[1])
    return promised


def check(run_dir: Path, promised: int) -> None:
    with RunReader(run_dir) as reader:
        info = reader.info()
        assert info.status == "crashed" and info.error
        assert reader.metrics.last_step() >= promised and info.step >= promised
        rows = reader.rollouts.page(limit=100_000)
        assert [r.n for r in rows] == list(range(1, len(rows) + 1))
        steps = [r.step for r in rows if r.step is not None]
        assert steps == sorted(steps) and len(steps) == len(rows) >= promised * 8
        for name, sign in (("a", 1), ("b", -1)):
            series = reader.metrics.points(name)
            assert series == [(s, sign * s) for s in range(1, len(series) + 1)] and len(series) >= promised
        for n in (1, len(rows) // 2, len(rows)):
            if n:
                assert reader.bodies.trajectory(n).trajectory.id == rows[n - 1].id
                assert reader.bodies.tokens(n) is not None
        assert reader.rollouts.count(Query(search="circle")) == len(rows)
        assert reader.problems == []


def kill_at_random_instants(parent: subprocess.Popen[str], tmp_path: Path, times: int) -> None:
    rng = random.Random(0)
    for i in range(times):
        run_dir = tmp_path / f"run{i}"
        check(run_dir, write_and_kill(parent, run_dir, rng.uniform(0, 0.2)))


def test_eight_kills_lose_nothing_that_was_committed(parent: subprocess.Popen[str], tmp_path: Path):
    kill_at_random_instants(parent, tmp_path, 8)


@pytest.mark.stress
def test_three_hundred_kills_lose_nothing_that_was_committed(parent: subprocess.Popen[str], tmp_path: Path):
    kill_at_random_instants(parent, tmp_path, 300)


def test_a_killed_run_goes_on_where_it_was(parent: subprocess.Popen[str], tmp_path: Path):
    promised = write_and_kill(parent, tmp_path / "run", 0.05)
    writer = RunWriter(tmp_path / "run", resume_from_step=promised)
    writer.metrics(promised + 1, {"a": promised + 1})
    assert writer.flush(20)
    with RunReader(tmp_path / "run") as reader:
        assert reader.info().status != "crashed"  # the process that writes now is this one
        assert reader.metrics.points("a") == [(s, s) for s in range(1, promised + 2)]
        assert reader.rollouts.total() == promised * 8
    writer.close()

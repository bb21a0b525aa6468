"""No process of an online run outlives the one it works for, and what is left of a crash can be ended and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from grpo_tui.engine.launch import LaunchError
from grpo_tui.engine.launch.find import list_runs
from grpo_tui.engine.launch.settings import rendered
from grpo_tui.engine.launch.start import start_run
from grpo_tui.engine.launch.stop import stop_run, wait_until_gone
from grpo_tui.engine.online.process import run_process
from grpo_tui.engine.online.serve.serving import RESERVED
from grpo_tui.engine.runs.control.status import ENDED, identity, look, process_state
from grpo_tui.engine.runs.durable import hold, write_json
from grpo_tui.engine.runs.paths import CONFIG_FILE
from grpo_tui.engine.runs.schema import REQUEST_POSITION, recorded_position
from tests.forked import forked_processes

from .test_online_run import ask_over_http, logs, wait_for
from .tiny import run_config

VALIDATION = "grpo_tui.engine.online.learn.validator"
PARENT = """
import subprocess, sys, time
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)
print(child.pid, flush=True)
time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize("age", [0.0, 0.3, 2.0])
def test_validation_ends_with_its_parent_at_any_age(tmp_path: Path, age: float) -> None:
    config = run_config(tmp_path / "policy")
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / CONFIG_FILE).write_bytes(rendered(config)[0])
    command = [sys.executable, "-m", VALIDATION, str(run_dir), "--child"]
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *command], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    time.sleep(age)
    parent.kill()
    parent.wait()
    wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the child's end", 20.0)


def _pid(run_dir: Path, name: str) -> int | None:
    state = process_state(run_dir, name)
    return int(state["pid"]) if state["alive"] else None


def test_an_engine_that_dies_alone_leaves_nothing_behind(tmp_path: Path) -> None:
    config = run_config(
        tmp_path / "policy",
        serve="127.0.0.1:0",
        max_requests=3,
        validation={"every_updates": 4, "tasks": 4, "canary_tasks": 4},
    )
    runs = tmp_path / "runs"
    with forked_processes():
        run_dir = Path(start_run(config, runs_dir=runs, run_id="one").path)
    wait_for(lambda: look(run_dir).status == "running" and _pid(run_dir, "validation"), "all three processes")
    assert ask_over_http(run_dir)["grpo_tui"]["request"] == 1
    wait_for(lambda: recorded_position(run_dir, REQUEST_POSITION), "the first answer's row")
    engine = _pid(run_dir, "engine")
    assert engine is not None
    os.kill(engine, signal.SIGKILL)
    assert wait_until_gone(run_dir, 60.0) == [], logs(run_dir)
    assert look(run_dir).status == "crashed"
    with forked_processes():
        start_run(config, runs_dir=runs, resume="one")  # nothing is in its way
    wait_for(lambda: look(run_dir).status == "running", "the resumed run")
    told = [ask_over_http(run_dir)["grpo_tui"]["request"] for _ in range(2)]
    assert told == [RESERVED + 1, RESERVED + 2]  # no number is told twice, and those in between count for no request
    status = wait_for(lambda: (i := look(run_dir)).status in ENDED and i, "the end after three requests")
    assert status.status == "finished", logs(run_dir)
    assert wait_until_gone(run_dir, 60.0) == []


@pytest.fixture
def leftover(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[Any]]]:
    """A crashed run of which a worker still lives, as the launcher noted it."""
    run_dir = tmp_path / "runs" / "one"
    (_made(run_dir) / CONFIG_FILE).write_bytes(rendered(run_config(tmp_path / "policy"))[0])
    write_json(run_dir / "run.json", {"id": "one", "mode": "online", "created": 1.0, "launched": 1.0})
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    write_json(run_dir / "processes" / "engine.launch.json", {"pid": 2**22 + 1, "started": 1.0, "time": 1.0})
    write_json(run_dir / "processes" / "worker.launch.json", {**identity(worker.pid), "time": time.time()})
    yield run_dir, worker
    worker.kill()
    worker.wait()


def _made(run_dir: Path) -> Path:
    run_dir.mkdir(parents=True)
    return run_dir


def test_resuming_names_what_blocks_and_stop_ends_it(leftover: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir, worker = leftover
    from grpo_tui.engine.launch import start
    from grpo_tui.engine.launch.settings import read_config

    monkeypatch.setattr(start, "ENDING_SECONDS", 0.2)
    with pytest.raises(
        LaunchError, match=rf"'worker' \(pid {worker.pid}\) of run one is still alive: `grpo-tui stop {run_dir}`"
    ):
        start_run(read_config(run_dir), runs_dir=run_dir.parent, resume="one")
    command = [sys.executable, "-m", "grpo_tui.tui.cli", "stop", "one", "--runs-dir", str(run_dir.parent)]
    done = subprocess.run([*command, "--timeout", "20"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "stopping its other processes: worker" in done.stdout
    assert f"grpo-tui online --resume {run_dir}" in done.stdout
    assert worker.wait(10) == -signal.SIGTERM
    assert [r.id for r in list_runs(run_dir.parent)] == ["one"]


def test_a_process_that_cannot_be_proved_to_be_ours_is_left_alone(leftover: Any) -> None:
    run_dir, worker = leftover
    write_json(run_dir / "processes" / "worker.launch.json", {"pid": worker.pid, "time": time.time()})
    stop_run(look(run_dir), timeout=1.0, force=True)
    assert worker.poll() is None


@pytest.mark.parametrize("name", ["engine", "worker"])
def test_a_second_process_beside_a_living_one_touches_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    def life(*_: Any) -> bool:
        raise AssertionError("it must not begin")

    with hold(tmp_path, name):
        before = sorted(tmp_path.rglob("*"))
        assert run_process(name, life, [str(tmp_path)]) == 1
    assert f"another process runs the {name} of run {tmp_path.name}" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before

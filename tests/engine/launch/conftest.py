"""A small training process in place of the real one: it records, answers requests and ends as its run's name says."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from grpo_tui.configs.schema import RunConfig
from grpo_tui.engine.launch import start
from grpo_tui.engine.launch.find import list_runs
from grpo_tui.engine.launch.start import start_run
from grpo_tui.engine.runs.control.status import look, process_names, process_state
from grpo_tui.engine.runs.types import RunInfo
from tests.forked import forked_processes

TRAINER = """
import json, os, sys, time
from pathlib import Path
from grpo_tui.engine.runs.control.requests import ControlChannel
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.write.writer import RunWriter

NAME = Path(__file__).stem.removeprefix("small_")
run_dir, resume = Path(sys.argv[1]), "--resume" in sys.argv
kind = json.loads((run_dir / "run.json").read_text())["name"]
print("loading", kind, flush=True)
if kind == "loads for ever":
    time.sleep(1000)
if kind == "dies early":
    raise SystemExit("no such thing as a model")
secret = None
if "api_key:" in (run_dir / "config.yaml").read_text():  # the import takes longer than all others
    from grpo_tui.engine.launch.settings import read_config
    secret = read_config(run_dir).environment.config.get("api_key")
step = 0
if resume:
    with RunReader(run_dir) as reader:
        step = reader.metrics.last_step()
writer = RunWriter(run_dir, process=NAME, resume_from_step=step if resume else None)
control = ControlChannel(run_dir, process=NAME, sigterm=True)
if secret:
    writer.event("phase", "the secret has %d characters" % len(secret), name="loading")
writer.status("running", step=step, total_steps=100_000)
stopping = False
while True:
    step += 1
    time.sleep(0.01)
    writer.metrics(step, {"success/train": 0.5})
    if kind == "crashes" and step == 5:
        writer.flush()
        raise RuntimeError("the model fell over")
    for request in control.poll():
        if kind == "is deaf":
            continue
        if request.command == "stop":
            stopping = True
        control.acknowledge(request, f"{request.command} at step {step}")
    if stopping:
        writer.event("checkpoint", "saved", step=step, path="checkpoints/1")
        writer.status("stopped", step=step, exit_code=0)
        writer.close()
        sys.exit(0)
"""

Start = Callable[..., RunInfo]


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def start_small(tmp_path: Path, runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    for name in ("training", "engine", "worker"):
        (tmp_path / f"small_{name}.py").write_text(TRAINER)
    monkeypatch.setattr(start, "MODULES", {"training": "small_training"})
    monkeypatch.setattr(start, "ONLINE_MODULES", {"engine": "small_engine", "worker": "small_worker"})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def go(name: str = "", **options: object) -> RunInfo:
        config = options.pop("config", None) or RunConfig(name=name)
        return start_run(config, runs_dir=runs_dir, **options)  # type: ignore[arg-type]

    with forked_processes():
        yield go
    for run in list_runs(runs_dir):
        for process in process_names(Path(run.path)):
            state = process_state(Path(run.path), process)
            if state["alive"]:
                with suppress(ProcessLookupError):
                    os.kill(state["pid"], signal.SIGKILL)


def until(test: Callable[[RunInfo], bool], run: RunInfo, seconds: float = 30.0) -> RunInfo:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        info = look(Path(run.path))
        if test(info):
            return info
        time.sleep(0.02)
    raise AssertionError(f"the run is still {look(Path(run.path))}")

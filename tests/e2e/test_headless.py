"""Training without a terminal: progress as lines, Ctrl-C that saves, and a record in trouble that stops nothing."""

from __future__ import annotations

import json
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_tui.engine.launch.find import find_run
from grpo_tui.engine.runs.read.reader import RunReader
from tests.forked import ForkedProcess

from .world import grpo_tui, variables, write_world

STEPS = 30


class Training:
    """`grpo-tui train` in a pipe, its lines read one by one."""

    def __init__(self, project: Path, config: Path) -> None:
        command = [sys.executable, "-m", "grpo_tui.tui.cli", "train", config.name, "--run-id", "h"]
        self.process = ForkedProcess(
            command, cwd=project, env=variables(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.run = project / "runs" / "h"
        self.lines: list[str] = []

    def until(self, beginning: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith(beginning):
                return line
        raise AssertionError("\n".join(self.lines))

    def end(self) -> str:
        """The exit code is in `process.returncode` then; gives all lines."""
        rest, _ = self.process.communicate(timeout=240)
        return "\n".join([*self.lines, rest])


@pytest.fixture
def training(project: Path, model: Path, request: pytest.FixtureRequest) -> Iterator[Training]:
    steps = getattr(request, "param", STEPS)
    started = Training(project, write_world(project, model, max_steps=steps, save_every=0))
    yield started
    started.process.kill()
    started.process.wait()


def test_ctrl_c_lets_the_run_save_and_says_how_to_resume(training: Training, project: Path):
    training.until("step ")
    training.process.send_signal(signal.SIGINT)
    text = training.end()
    assert training.process.returncode == 130
    assert "run h stopped at step" in text and "grpo-tui train --resume h" in text
    stopped = find_run(project / "runs", "h")
    assert stopped.status == "stopped" and 1 <= stopped.step < STEPS
    by_path = ("--resume", "runs/h", "--runs-dir", "other runs")
    resumed = grpo_tui(project, "train", *by_path, "--set", f"training.max_steps={stopped.step + 1}")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    with RunReader(training.run) as reader:
        assert [s for s, _ in reader.metrics.points("train/loss")] == list(range(1, stopped.step + 2))


@pytest.mark.parametrize("training", [8], indirect=True)
def test_training_goes_on_without_its_record_and_says_so_once(training: Training, project: Path):
    training.until("step ")
    gone = training.run.rename(project / "gone")  # at once: a checkpoint may be written there right now
    shutil.rmtree(gone, ignore_errors=True)
    text = training.end()
    assert training.process.returncode == 0, text
    assert text.count("is gone; training continues") == 1
    assert "exit code 0" in text
    assert (project / "saved_models" / "rft_adapters" / "adapter_model.safetensors").exists()


@pytest.mark.parametrize("training", [500], indirect=True)
def test_training_goes_on_when_the_disk_takes_no_more_and_the_log_says_so_once(training: Training):
    """A limit on the size of files refuses the record's writes as a full disk does, without needing one."""
    training.until("step ")
    pid = find_run(training.run.parent, "h").pid
    assert pid is not None
    log = training.run / "logs" / "training.log"
    while not (training.run / "checkpoints" / "checkpoint-1").exists():  # which is not the record, and larger
        assert training.process.poll() is None
        time.sleep(0.01)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (64 << 10, resource.RLIM_INFINITY))
    while "cannot be written" not in log.read_text():
        assert training.process.poll() is None
        time.sleep(0.02)
    refused = find_run(training.run.parent, "h").step
    while find_run(training.run.parent, "h").step < refused + 3:  # several steps on which the disk refuses
        assert training.process.poll() is None
        time.sleep(0.02)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    told_step = 0
    while told_step < refused + 4:  # these lines come from the record
        told_step = int(re.findall(r"\d+", training.until("step "))[0])
    training.process.send_signal(signal.SIGINT)
    text = training.end()
    assert training.process.returncode == 130, text
    steps = find_run(training.run.parent, "h").step
    assert steps >= told_step
    assert log.read_text().count("training continues without its record") == 1
    with RunReader(training.run) as reader:
        assert reader.problems == []
        (told,) = reader.events(kinds=("record",))
        assert "cannot be written" in told.message
        assert reader.rollouts.total() == steps * 16 - told.data["dropped"]


def test_a_run_that_cannot_start_is_told_in_one_line_with_its_log(project: Path, model: Path):
    config = write_world(project, model)
    (project / "letters.py").write_text("import a_package_that_is_not_there\n")
    answer = grpo_tui(project, "train", config.name, "--run-id", "h")
    assert answer.returncode == 1
    assert "a_package_that_is_not_there" in answer.stderr
    assert "runs/h/logs" in answer.stderr
    assert "Traceback" not in answer.stdout + answer.stderr
    assert json.loads(grpo_tui(project, "runs", "--json").stdout)["status"] == "crashed"

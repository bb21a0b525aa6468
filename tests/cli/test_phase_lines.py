"""Plain lines of a run inside a step."""

import threading
import time

import pytest

from grpo_tui.configs import metric_names as metric
from grpo_tui.engine.runs.control.live import BatchState, LiveState, Purpose, ServerState
from grpo_tui.engine.runs.durable import write_json
from grpo_tui.engine.runs.types import Progress, RunInfo
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.tui.cli import follow


def running(progress: Progress | None, step: int = 2) -> RunInfo:
    return RunInfo("ab12", "runs/ab12", "rft", "running", step=step, total_steps=20, progress=progress)


def batch(**changes) -> BatchState:
    given = dict(
        purpose=Purpose("", 3, 1, 32), began=100.0, time=110.0, rollouts=32, finished=12, tokens=850, limit=4096
    )
    return BatchState(**{**given, "left": 20.0, **changes})


@pytest.mark.parametrize(
    ("progress", "live", "line"),
    [
        (
            Progress("rollouts", 0, 32, 100.0),
            LiveState((batch(),)),
            "step 3/20: 12 of 32 rollouts · 850 of ≤ 4,096 tokens · 85.0 tok/s · ≤ 20 s left",
        ),
        (
            Progress("rollouts", 0, 32, 100.0, 30.0),
            LiveState((batch(),), (ServerState("http://a", 4, 9, 1200), ServerState("http://b", why_out="no answer"))),
            "step 3/20: 12 of 32 rollouts · 850 of ≤ 4,096 tokens · 85.0 tok/s · about 20 s left · "
            "http://a: 4 in flight, 1,200 tokens · http://b: out (no answer)",
        ),
        (
            Progress("evaluation", 0, 8, 100.0),
            LiveState((batch(purpose=Purpose("held-out tasks, greedy", 2), rollouts=8, finished=8, limit=900, left=None,
                             ended=True, rewards=(1.0, 0.0)),)),
            "step 2/20: held-out tasks, greedy · 8 of 8 rollouts · 850 tokens · 85.0 tok/s · 10 s so far · "
            "reward 0.50 of 2",
        ),
        (Progress("log-probs", 8, 32, 100.0), None, "step 3/20: log-probs 8/32 · about 30 s left"),
        (Progress("backward", 0, 1, 100.0, 15.0), None, "step 3/20: backward · about 5 s left"),
        (Progress("scoring", 0, 0, 109.9), None, "step 3/20: scoring"),
        (Progress("checkpoint", 0, 0, 100.0), None, "step 2/20: checkpoint · 10 s so far"),
        (None, None, ""),
    ],
)  # fmt: skip
def test_a_line_says_how_far_a_phase_is(progress, live, line):
    assert follow.phase_line(running(progress), live, 110.0) == line


def test_a_slow_phase_is_told_from_time_to_time(tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "PHASE_EVERY_S", 0.3)
    folder = tmp_path / "ab12"
    write_json(folder / "run.json", {"id": "ab12", "mode": "rft", "created": time.time()})
    writer = RunWriter(folder)
    writer.status("running", total_steps=4)
    writer.progress("log-probs", 2, 8)
    assert writer.flush(10)
    lines: list[str] = []

    def out(line: str) -> None:
        lines.append(line)
        if "step 1/4: log-probs" in line:
            writer.status("finished", step=4)

    assert follow.follow(RunInfo("ab12", str(folder), "rft", "running"), out=out) == 0
    assert lines[0].startswith("step 1/4: log-probs 2/8")
    writer.close()


@pytest.mark.parametrize("mode", ["rft", "eval"])
def test_a_resumed_run_prints_only_what_happens_from_now_on(tmp_path, mode):
    """Also the steps after the checkpoint, which are trained again. An evaluation has no steps to print."""
    folder = tmp_path / "ab12"
    write_json(folder / "run.json", {"id": "ab12", "mode": mode, "created": time.time()})
    writer = RunWriter(folder)
    for step in (1, 2, 3):
        writer.metrics(step, {metric.REWARD_MEAN: 0.5})
        writer.event("phase", f"old event {step}", step=step)
    writer.close()

    def train() -> None:
        writer = RunWriter(folder, resume_from_step=1)
        writer.status("running", step=1, total_steps=3)
        writer.event("phase", "resuming", step=1)
        for step in (2, 3):
            writer.metrics(step, {metric.REWARD_MEAN: 0.25})
            writer.event("phase", f"new event {step}", step=step)
        assert writer.flush(10)
        writer.status("finished", step=3)
        writer.close()

    lines: list[str] = []
    threading.Timer(0.1, train).start()
    assert follow.follow(RunInfo("ab12", str(folder), mode, "starting"), out=lines.append) == 0
    trained = ["step 3/3  reward 0.25"] if mode == "rft" else []
    assert lines[:-2] == ["step 1: resuming", "step 2: new event 2", *trained, "step 3: new event 3"]

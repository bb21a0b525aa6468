"""Batches of rollouts that serve several updates, and rollouts that are left out of the loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpo_tui.configs import metric_names as metric
from grpo_tui.engine.launch.settings import read_config
from grpo_tui.engine.recompute.check import recompute
from grpo_tui.engine.runs.control.requests import outcome, request
from grpo_tui.engine.runs.control.status import look
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.training.__main__ import run

from .runs import events, make_run, recorded_rollouts, recorded_steps, start
from .test_resume import assert_same_run, kill_when

REUSED = [
    ({"num_iterations": 2}, 8),
    ({"generation_batch_size": 16}, 16),
    pytest.param({"num_iterations": 3}, 8, marks=pytest.mark.stress),
]


@pytest.mark.parametrize(("trl", "rows"), REUSED, ids=lambda value: "-".join(value) if isinstance(value, dict) else "")
def test_a_reused_batch_is_recorded_once_and_a_killed_run_becomes_the_one_that_was_not(
    tmp_path: Path, trl: dict[str, int], rows: int
):
    updates = trl.get("num_iterations", 1) * rows // 8
    settings: dict[str, Any] = {
        "max_steps": 6,
        "eval_tasks": 0,
        "trl": trl,
        "micro_batch_size": 4,
        "replay": {"mode": "off"},
    }
    whole = make_run(tmp_path / "whole", tmp_path / "base", **settings)
    assert run(whole) == 0
    assert recorded_steps(whole) == [1, 2, 3, 4, 5, 6]
    assert recorded_rollouts(whole) == dict.fromkeys(range(1, 7, updates), rows)
    with RunReader(whole) as reader:
        report = recompute(reader, read_config(whole))
    assert [str(w) for w in report.wrong] == []
    killed = make_run(tmp_path / "killed", tmp_path / "base", **settings)
    kill_when(killed, lambda: look(killed).step >= 3, resume=False)
    assert run(killed, resume=True) == 0
    assert_same_run(killed, whole)


def test_what_is_asked_or_due_within_a_reused_batch_waits_for_its_end(tmp_path: Path):
    """Nothing of the batch is in a checkpoint, so the rest of its updates would be made on other rollouts."""
    settings: dict[str, Any] = {
        "max_steps": 6,
        "eval_tasks": 0,
        "trl": {"num_iterations": 3},
        "replay": {"mode": "off"},
    }
    whole = make_run(tmp_path / "whole", tmp_path / "base", **settings)
    assert run(whole) == 0
    assert events(whole, "checkpoint")[:2] == ["checkpoint of step 3", "checkpoint of step 6"]
    stopped = make_run(tmp_path / "stopped", tmp_path / "base", **settings)
    process = start(stopped)
    try:
        asked = request(stopped, "stop")
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert outcome(stopped, asked) == "stopping; saved as checkpoint-3"
    assert run(stopped, resume=True) == 0
    assert_same_run(stopped, whole)


def test_rollouts_that_a_limit_cut_are_left_out_of_the_loss(tmp_path: Path):
    trl = {"mask_truncated_completions": True, "entropy_coef": 0.01}
    folder = make_run(tmp_path / "run", tmp_path / "base", max_steps=2, eval_tasks=0, max_turn_tokens=40, trl=trl)
    assert run(folder) == 0
    with RunReader(folder) as reader:
        rows = reader.rollouts.page(limit=100)
        records = [reader.bodies.trajectory(row.n) for row in rows if row.split == "train"]
        cut = [r for r in records if r.trajectory.cut]
        assert len(cut) > 0
        assert [value for _, value in reader.metrics.points(metric.ENTROPY_WEIGHT)] == [0.01, 0.01]
        for record in records:
            if record.use is not None and record.use.loss is not None:
                assert (record.use.loss.tokens == 0) == record.trajectory.cut
        report = recompute(reader, read_config(folder))
    assert [str(w) for w in report.wrong] == []

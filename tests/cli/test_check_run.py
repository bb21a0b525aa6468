"""`grpo-tui check RUN` judges the record with the run's own limits, its metrics, and training rollouts alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_tui import Message, Recorder, Rollout
from grpo_tui.engine.imports.tokens import token_arrays
from grpo_tui.tui.cli.main import run


def record(home: Path, *, entropy: Any = lambda step: 1.0, length: Any = lambda step: 40, held_out: int = 0) -> None:
    with Recorder("mine", runs_dir=home) as recorder:
        for step in range(1, 9):
            rollouts = [
                Rollout(
                    prompt=(Message("user", f"{step}?"),),
                    completion=(Message("assistant", "a b c"),),
                    reward=float(i),
                    group=f"{split}-{step}",
                    split=split,
                    step=step,
                    tokens=lambda n=n: token_arrays(list(range(n + 100)), [0] * 100 + [1] * n, ()),
                )
                for split, count, n in (("train", 4, length(step)), ("eval", held_out, 400 if step == 1 else 4))
                for i in range(count)
            ]
            recorder.rollouts(step, rollouts)
            recorder.metrics(step, {"train/entropy": entropy(step)})


def found(home: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, Any]]]:
    code = run(["check", "mine", "--runs-dir", str(home), "--json"])
    findings = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return code, {f["detector"]: f for f in findings if f["severity"] != "not checked"}


def test_an_entropy_that_collapses_is_found_in_the_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path, entropy=lambda step: 1.0 if step < 5 else 0.001)
    code, findings = found(tmp_path, capsys)
    assert code == 1
    assert findings["entropy_collapse"]["step"] == 5 and findings["entropy_collapse"]["value"] == 0.001


def test_lengths_are_those_of_the_agent_and_of_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path, length=lambda step: 40 if step < 5 else 10, held_out=8)
    code, findings = found(tmp_path, capsys)
    assert code == 1
    # Of all tokens 110 of 140 would be left; with the held-out rollouts the fall would begin at step 2.
    assert (findings["length_collapse"]["step"], findings["length_collapse"]["value"]) == (5, 0.25)


def test_limits_are_those_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path, length=lambda step: 40 if step < 5 else 30)
    assert found(tmp_path, capsys) == (0, {})
    config = {"mode": "rft", "rewards": {"diagnosis": {"length_fall": 0.9}}}
    (tmp_path / "mine" / "config.yaml").write_text(yaml.safe_dump(config))
    code, findings = found(tmp_path, capsys)
    assert code == 1 and findings["length_collapse"]["threshold"] == 0.9


def test_advantages_that_are_no_comparison_of_rewards_need_not_follow_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with Recorder("mine", runs_dir=tmp_path) as recorder:
        for step in range(1, 9):
            rollouts = [
                {
                    "prompt": f"{step} {group}?",
                    "completion": f"{step} {group} {i}",
                    "reward": float(i % 2),
                    "advantage": (-1) ** (i // 2) * 1e-3,
                    "group": f"{step}-{group}",
                }
                for group in range(8)
                for i in range(4)
            ]
            recorder.rollouts(step, rollouts)
    assert {"advantage_scale", "advantage_order"} <= found(tmp_path, capsys)[1].keys()
    for training in ({"advantages": "reward"}, {"distillation": {"teacher": "http://127.0.0.1:8000"}}):
        config = {"mode": "rft", "training": training}
        (tmp_path / "mine" / "config.yaml").write_text(yaml.safe_dump(config))
        assert not {"advantage_scale", "advantage_order"} & found(tmp_path, capsys)[1].keys()


def test_a_record_that_cannot_be_read_is_not_a_record_without_problems(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "run.json").write_text("{}")
    (tmp_path / "mine" / "record.sqlite").write_bytes(b"no database" * 999)
    assert run(["check", "mine", "--runs-dir", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert "not read: " in shown.err and "cannot be opened" in shown.err
    assert "nothing found" not in shown.out

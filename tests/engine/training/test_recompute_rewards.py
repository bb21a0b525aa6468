"""Each way to say what a reward is: a training records numbers that come out again from the record alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_tui.engine.launch.settings import read_config
from grpo_tui.engine.recompute.check import recompute, recompute_steps
from grpo_tui.engine.recompute.items import steps_of
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.training.__main__ import run

from .test_own_rewards import configured

OWN = '''
import torch
from grpo_tui.envs.multi_turn import MultiTurnEnv
from grpo_tui.envs.base import StepResult
from grpo_tui.rewards.components import RewardComponent
from grpo_tui.rewards.penalties import PenaltyRule


class Paying(MultiTurnEnv):
    """Pays for every turn; `known`: says whether the answer is right."""

    def __init__(self, tokenizer=None, *, known=False, max_turns=3):
        super().__init__(tokenizer, max_turns=max_turns)
        self.known = known

    def reset(self, task):
        return {"turns": 0}, [{"role": "user", "content": f"Task {task['index']}"}]

    def parse(self, text):
        from grpo_tui.envs.calls import ToolCall
        return ToolCall("SAY", {}, text, text)

    def step(self, state, call):
        state["turns"] += 1
        done = state["turns"] == 2
        right = len(call.text) % 2 == 0 if self.known and done else None
        return StepResult("go on", reward=len(call.text) / 10, done=done, answer=call.text, correct=right)

    def make_tasks(self, split, n, seed):
        return [{"index": i} for i in range(n)]


class Brevity(RewardComponent):
    def compute(self, batch):
        return torch.tensor([-len(s.text) / 100 for s in batch.steps]), torch.ones_like(batch.last)


class Short(PenaltyRule):
    id = "short"
    amount = -0.3

    def check(self, episode, step):
        return self.penalty(step, saw={}, limit="9", why="Short.", right="More.") if len(step.text) < 9 else None
'''
CALCULATOR = {"class_path": "grpo_tui.envs.calculator.CalculatorEnv", "config": {"max_turns": 2}, "train_tasks": 16}
FUNCTIONS = {"vowels": 1.0, "even_rows_only": -0.1, "digits_where_any": 0.3}


def paying(**config: Any) -> dict[str, Any]:
    return {"class_path": "own.py:Paying", "config": config, "train_tasks": 16}


WAYS: dict[str, dict[str, Any]] = {
    "functions": {"rewards": {"normalization": {"functions": "zscore"}}},
    "functions by gdpo": {
        "environment": {"success_score": 0.25},
        "rewards": {"normalization": {"functions": "group"}},
        "training": {"advantages": "gdpo"},
    },
    "an environment without answers": {"environment": paying(), "training": {"advantages": "reward"}},
    "an environment with answers": {"environment": paying(known=True), "training": {"advantages": "turn"}},
    "shaping that fades": {
        "environment": CALCULATOR,
        "rewards": {"anneal_steps": 3},
    },
    "code of one's own": {
        "environment": CALCULATOR,
        "rewards": {
            "extra_components": {"brevity": {"class_path": "own.py:Brevity", "normalization": "zscore"}},
            "penalty_rules": [{"class_path": "own.py:Short"}],
            "w_penalty": 1.0,
        },
    },
}


def train(folder: Path, monkeypatch: pytest.MonkeyPatch, way: dict[str, Any]) -> Path:
    monkeypatch.chdir(folder)
    (folder / "own.py").write_text(OWN)
    config = configured(folder, FUNCTIONS).model_dump(mode="json")
    if "class_path" in way.get("environment", {}):
        config["environment"]["reward_funcs"], config["data"] = {}, {}
    for section, changes in way.items():
        config[section] |= changes
    # The calculator's prompts have 61 to 82 tokens: with the limit of 64, most of its rollouts had no turn to check.
    config["training"] |= {"replay": {"mode": "off"}, "max_trajectory_tokens": 256}
    run_dir = folder / "run"
    run_dir.mkdir()
    (run_dir / "config.yaml").write_text(yaml.safe_dump(config))
    assert run(run_dir) == 0
    return run_dir


@pytest.mark.parametrize("name", WAYS)
def test_rewards_come_out_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    folder = train(tmp_path, monkeypatch, WAYS[name])
    with RunReader(folder) as reader:
        report = recompute(reader, read_config(folder))
    assert [str(wrong) for wrong in report.wrong] == []
    assert report.compared["reward of the turn"] > 0 and report.compared["advantage"] > 0
    if "functions" in name:
        assert report.compared["raw vowels"] == 16


def test_a_score_that_was_changed_afterwards_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = train(tmp_path, monkeypatch, WAYS["functions"])
    with RunReader(folder) as reader:
        (step, items), *more = steps_of(reader)
        metrics = reader.metrics.by_step()
    trajectory = items[0].record.trajectory
    (changed,) = (replace(s, scores=tuple(replace(x, value=9.0) for x in s.scores)) for s in trajectory.steps)
    record = replace(items[0].record, trajectory=replace(trajectory, steps=(changed,)))
    steps = [(step, [replace(items[0], record=record), *items[1:]]), *more]
    report = recompute_steps(steps, metrics, read_config(folder))
    assert {wrong.kind for wrong in report.wrong} >= {"raw vowels", "raw digits_where_any"}

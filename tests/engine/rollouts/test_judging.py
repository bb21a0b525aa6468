"""What reward functions are given of a rollout, and what becomes of their scores."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from grpo_tui.configs.sections import EnvironmentConfig
from grpo_tui.configs.sections.rewards import DiagnosisConfig, RewardsConfig
from grpo_tui.engine.rollouts.evaluation import evaluate
from grpo_tui.engine.rollouts.judging import completions_of, make_judge
from grpo_tui.engine.rollouts.runner import RolloutRunner, Row
from grpo_tui.envs.trajectory import Step, Trajectory
from grpo_tui.rewards.diagnosis import DETECTORS
from grpo_tui.rewards.functions import RewardFunctionError
from grpo_tui.rewards.metrics import action_distribution
from grpo_tui.rewards.orchestrator import RewardOrchestrator
from tests.engine.agents.models import tokenizer
from tests.envs.scripts import ByteAgent
from tests.rewards.episodes import batch_of

TOOLS = '''
def add(a: int, b: int) -> int:
    """
    Adds.

    Args:
        a: One.
        b: Another.
    """
    return a + b
'''
REWARDS = """
def right(completions, answer, **kwargs):
    return [float(c[-1]["content"] == a) for c, a in zip(completions, answer)]

def calls(completions, **kwargs):
    return [sum("tool_calls" in m for m in c) for c in completions]
"""
TASK = {
    "messages": [{"role": "system", "content": "Add."}, {"role": "user", "content": "2 + 3?"}],
    "columns": {"answer": "5"},
    "row": 7,
    "plain": False,
}


@pytest.fixture
def rollouts(tmp_path: Path):
    """Three rollouts of one task: with the tool and right, at once and wrong, with a call that cannot be read."""
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "mine.py").write_text(REWARDS)
    turns = [
        ['so: {"name": "add", "arguments": {"a": 2, "b": 3}}', "5"],
        ["6"],
        ["<tool_call>{</tool_call>", "5"],
    ]
    agent = ByteAgent(lambda row, turn, seen: turns[row][turn])
    row = Row("grpo_tui.envs.dataset.DatasetEnv", {"tools": [f"{tmp_path / 'tools.py'}:add"]}, TASK)
    runner = RolloutRunner(agent, None, 3)  # type: ignore[arg-type] - takes the seeds that it is given
    weights = {f"{tmp_path / 'mine.py'}:right": 1.0, f"{tmp_path / 'mine.py'}:calls": 0.5}
    judge = make_judge(EnvironmentConfig(reward_funcs=weights), [row])
    assert judge is not None
    return judge, runner.run([row]), [row] * 3


def test_completions_are_messages_with_calls_and_what_the_tools_answered(rollouts):
    _, made, rows = rollouts
    asked = completions_of(made, rows)
    assert asked.prompts[0] == TASK["messages"] or "Use the tools" in str(asked.prompts[0])
    assert asked.completions[0] == [
        {
            "role": "assistant",
            "content": "so:",
            "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 3}}}],
        },
        {"role": "tool", "name": "add", "content": "5"},
        {"role": "assistant", "content": "5"},
    ]
    assert asked.completions[1] == [{"role": "assistant", "content": "6"}]
    assert asked.columns == {"answer": ["5", "5", "5"]}
    assert asked.rows == ["row 7 of the data"] * 3
    said = bytes(asked.completion_ids[0]).decode()
    assert said.startswith("so: {") and said.endswith("5")


def test_scores_are_components_on_the_last_step_and_the_first_says_what_is_right(rollouts):
    judge, made, rows = rollouts
    trajectories = [r.trajectory for r in judge(made, rows)]
    assert [t.correct for t in trajectories] == [True, False, True]
    assert {t.judged_by for t in trajectories} == {"right"}
    result = RewardOrchestrator(
        config=RewardsConfig(w_curiosity=0, w_coherence=0, w_penalty=0.2)
    ).calculate_total_reward(trajectories, [t.correct for t in trajectories])
    assert result.component_names == ("right", "calls", "penalty")
    assert [b.steps[-1].components["calls"].contribution for b in result.breakdowns] == [0.5, 0.0, 0.0]
    assert [b.total for b in result.breakdowns] == pytest.approx(
        [1.5, 0.0, 1 - 0.2 * 0.1]
    )  # an unreadable call costs 0.1
    assert [p.rule for p in result.breakdowns[2].penalties] == ["unparsable_call"]


def test_a_rollout_that_its_environment_failed_has_no_score(rollouts):
    judge, made, rows = rollouts
    failed = replace(made[0], trajectory=replace(made[0].trajectory, stop_reason="error", correct=None))
    done = judge([failed, made[1]], rows[:2])
    assert done[0].trajectory.steps[-1].scores == () and done[0].trajectory.correct is None
    assert done[1].trajectory.steps[-1].scores


def test_statistics_of_functions_are_saved_and_loaded():
    config = RewardsConfig.model_validate(
        {"w_curiosity": 0, "w_coherence": 0, "normalization": {"functions": "zscore"}}
    )

    def trajectory(i: int, value: float) -> Any:
        from grpo_tui.envs.trajectory import ComponentScore

        step = Step(0, "x", action="ANSWER", scores=(ComponentScore("mine", value, 2.0),))
        return Trajectory(str(i), "dataset", "p", "g", i, "?", (step,), judged_by="mine", correct=True)

    batch = [trajectory(i, float(i)) for i in range(40)]
    first = RewardOrchestrator(config=config)
    first.calculate_total_reward(batch, [True] * 40)
    second = RewardOrchestrator(config=config)
    second.load_state(first.state_tensors(), first.state_facts())
    scored = [o.calculate_total_reward(batch, [True] * 40, update=False).total for o in (first, second)]
    np.testing.assert_array_equal(scored[0].numpy(), scored[1].numpy())
    assert float(scored[0].abs().max()) > 1


def test_a_function_is_no_distraction_from_the_task(rollouts):
    judge, made, rows = rollouts
    trajectories = [r.trajectory for r in judge(made, rows)]
    result = RewardOrchestrator(config=RewardsConfig(w_curiosity=0, w_coherence=0)).calculate_total_reward(
        trajectories, [t.correct for t in trajectories]
    )
    batches = [batch_of(step, trajectories, result.breakdowns, {}) for step in range(4)]
    limits = DiagnosisConfig(window=4)
    assert DETECTORS["advantage_share"](batches, limits) == []
    unknown = [replace(b, rollouts=[replace(r, goals=frozenset()) for r in b.rollouts]) for b in batches]
    assert [f.subject for f in DETECTORS["advantage_share"](unknown, limits)] == ["right"]


def test_a_missing_column_is_said_before_a_rollout_is_made(tmp_path: Path):
    (tmp_path / "mine.py").write_text("def needs(completions, solution):\n    return [0.0]\n")
    row = Row("grpo_tui.envs.dataset.DatasetEnv", {}, TASK)
    with pytest.raises(RewardFunctionError, match="needs `solution`"):
        make_judge(EnvironmentConfig(reward_funcs={f"{tmp_path / 'mine.py'}:needs": 1.0}), [row])
    assert make_judge(EnvironmentConfig(), [row]) is None


def test_a_reward_model_without_a_chat_template_is_refused_before_a_rollout_is_made(tmp_path: Path):
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForSequenceClassification"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tokenizer().save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    environment = EnvironmentConfig(reward_funcs={str(tmp_path): 1.0})
    with pytest.raises(RewardFunctionError, match="has no chat template"):
        make_judge(environment, [Row("grpo_tui.envs.dataset.DatasetEnv", {}, TASK)])
    assert make_judge(environment, [Row("grpo_tui.envs.dataset.DatasetEnv", {}, {**TASK, "plain": True})]) is not None


def judged_by(tmp_path: Path, body: str, **config: Any):
    """Three rollouts without tools, judged by a function of this body; the text is `c[-1]["content"]`."""
    (tmp_path / "graded.py").write_text(
        f"def score(completions, **kwargs):\n    return [{body} for c in completions]\n"
    )
    said = ["yes", "perhaps", "no"]
    task = {"messages": [{"role": "user", "content": "?"}], "columns": {}, "row": 1, "plain": False}
    row = Row("grpo_tui.envs.dataset.DatasetEnv", {}, task)
    judge = make_judge(EnvironmentConfig(reward_funcs={f"{tmp_path / 'graded.py'}:score": 1.0}, **config), [row])
    runner = RolloutRunner(ByteAgent(lambda i, turn, seen: said[i % 3]), cast(Any, None), 3)
    runner.judge = judge
    return runner, row


def trajectories(made) -> list[Trajectory]:
    return [r.trajectory for r in made if r.trajectory is not None]


def test_a_graded_reward_has_no_success_unless_the_user_defines_it(tmp_path: Path):
    graded = "{'yes': 0.98, 'no': 0.0}.get(c[-1]['content'], 0.5)"
    runner, row = judged_by(tmp_path, graded)
    made = trajectories(runner.run([row]))
    assert [t.correct for t in made] == [None, None, None]
    assert [t.own_reward for t in made] == [0.98, 0.5, 0.0]
    found = evaluate(runner, [row], temperature=0.0)
    assert found.graded and found.reward == 0.98
    orchestrator = RewardOrchestrator(config=RewardsConfig(w_curiosity=0, w_coherence=0))
    metrics = orchestrator.calculate_total_reward(made, [t.correct for t in made]).metrics
    assert metrics["rewards/raw/score"] == pytest.approx(1.48 / 3)
    assert "rewards/raw/penalty" not in metrics, "nothing can be penalised"

    runner, row = judged_by(tmp_path, graded, success_score=0.9)
    assert [t.correct for t in trajectories(runner.run([row]))] == [True, False, False]
    assert evaluate(runner, [row], temperature=0.0).success == 1.0


def test_scores_of_0_and_1_say_what_is_right_until_another_one_comes(tmp_path: Path):
    runner, row = judged_by(tmp_path, "float(c[-1]['content'] == 'yes')")
    assert [t.correct for t in trajectories(runner.run([row]))] == [True, False, False]
    assert evaluate(runner, [row], temperature=0.0).success == 1.0


def test_a_resumed_run_knows_that_its_reward_is_graded(tmp_path: Path):
    runner, row = judged_by(tmp_path, "0.5")
    runner.run([row])
    assert runner.judge is not None
    cast(Any, runner.judge).save(tmp_path)
    (tmp_path / "later").mkdir()
    runner, row = judged_by(tmp_path / "later", "1.0")
    cast(Any, runner.judge).load(tmp_path)
    assert [t.correct for t in trajectories(runner.run([row]))] == [None, None, None]


def test_plain_text_is_no_call_of_a_tool(tmp_path: Path):
    runner, row = judged_by(tmp_path, "1.0")
    made = trajectories(runner.run([row]))
    assert [t.actions for t in made] == [("(text)",)] * 3
    assert action_distribution(made) == {}

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.envs.calculator import CalculatorEnv

from .scripts import demonstrating


def outcomes(env: CalculatorEnv, tasks: list[dict], route: str) -> list[bool]:
    out = env.run_trial(tasks, demonstrating(env, tasks, 1, route), 1)
    return [bool(t.correct) for t in out["trajectories"]]


def test_the_tool_leads_to_the_answer_and_guessing_does_not():
    env = CalculatorEnv(operations=3)
    tasks = env.make_tasks("train", 60, seed=0)
    assert all(outcomes(env, tasks, "right"))
    assert np.mean(outcomes(env, tasks, "guess")) < 0.15
    assert np.mean(outcomes(env, tasks, "stop_early")) < 0.2
    with pytest.raises(ValueError, match="no route 'sideways', only right, guess, stop_early"):
        env.demonstrate(tasks[0], "sideways")


@given(st.integers(0, 10**6))
def test_answers_are_what_python_says(seed: int):
    for task in CalculatorEnv(operations=4).make_tasks("eval", 3, seed):
        value = task["start"]
        for operation, b in task["operations"]:
            value = {"add": value + b, "subtract": value - b, "multiply": value * b}[operation]
        assert str(value) == task["answer"]


def test_the_splits_share_no_task():
    env = CalculatorEnv()
    train, held_out = ({str(t) for t in env.make_tasks(split, 400, seed=1)} for split in ("train", "eval"))
    assert not train & held_out


def test_overflowing_arguments_and_a_wrong_option_are_refused():
    with pytest.raises(ValueError, match="operations must be at least 1"):
        CalculatorEnv(operations=0)

import sys

import pytest

from grpo_tui.envs.calls import format_call
from grpo_tui.envs.plugins.gym import ReasoningGymEnv

from .scripts import ByteAgent, demonstrating


def test_single_turn_the_whole_text_is_the_answer():
    env = ReasoningGymEnv(dataset="chain_sum", options={"max_terms": 3, "max_digits": 2})
    tasks = env.make_tasks("train", 5, seed=1)
    done = env.run_trial(tasks, demonstrating(env, tasks, 2), 2)["trajectories"]
    assert all(t.correct and t.env_reward == 1.0 and len(t.steps) == 1 for t in done)
    assert done[0].answer == done[0].expected == tasks[0]["answer"]
    lost = env.run_trial(tasks, demonstrating(env, tasks, 1, "give_up"), 1)["trajectories"]
    assert not any(t.correct for t in lost)


def test_the_answer_may_stand_between_tags():
    env = ReasoningGymEnv()
    task = env.make_tasks("eval", 1, seed=0)[0]
    agent = ByteAgent(lambda *_: f"First 1, <answer>7</answer> no: <answer> {task['answer']} </answer> done")
    assert env.run_trial([task], agent, 1)["trajectories"][0].correct


def test_the_answer_may_be_the_last_number():
    env = ReasoningGymEnv(answer="last_number")
    task = env.make_tasks("eval", 1, seed=0)[0]
    for text, correct in (
        (f"3 + 4 makes {task['answer']}.", True),
        (f"{task['answer']} is not 99999", False),
        ("", False),
    ):
        agent = ByteAgent(lambda *_, text=text: text)
        assert env.run_trial([task], agent, 1)["trajectories"][0].correct is correct


def test_scratch_pad_notes_come_before_the_answer():
    env = ReasoningGymEnv(dataset="gcd", scratch_pad=True, instruction="Think.")
    tasks = env.make_tasks("train", 3, seed=2)
    done = env.run_trial(tasks, demonstrating(env, tasks, 1), 1)["trajectories"]
    assert all(t.correct and t.actions == ("NOTE", "ANSWER") for t in done)
    assert all(t.steps[0].observation == "noted" and "Think." in t.prompt for t in done)


def test_part_of_an_answer_is_part_of_a_point_and_not_correct():
    env = ReasoningGymEnv()
    task = env.make_tasks("train", 1, seed=0)[0]
    done = env.run_trial([task], ByteAgent(lambda *_: f"it is {task['answer']}"), 1)["trajectories"][0]
    assert 0 < done.env_reward < 1 and done.correct is False


@pytest.mark.parametrize("answer", ["__import__('os')", "x" * 20_000, "", "]]((", "\x00"])
@pytest.mark.parametrize("dataset", ["polynomial_multiplication", "simple_integration", "countdown"])
def test_hostile_answers_are_wrong_and_harmless(dataset: str, answer: str):
    env = ReasoningGymEnv(dataset=dataset, scratch_pad=True)
    task = env.make_tasks("train", 1, seed=0)[0]
    text = format_call("ANSWER", {"text": answer})
    done = env.run_trial([task], ByteAgent(lambda *_: text), 1)["trajectories"][0]
    assert done.stop_reason == "answer" and done.correct is False


def test_the_splits_share_no_question_and_tasks_repeat():
    env = ReasoningGymEnv()
    train, held_out = env.make_tasks("train", 60, seed=5), env.make_tasks("eval", 60, seed=5)
    assert ReasoningGymEnv().make_tasks("train", 30, seed=5) == train[:30]
    assert not {str(env.reset(t)[1][0].get("content")) for t in train} & {
        str(env.reset(t)[1][0].get("content")) for t in held_out
    }


@pytest.mark.parametrize(
    "config, message",
    [
        ({"dataset": "chain_sun"}, 'no data set "chain_sun"; did you mean "chain_sum"'),
        ({"options": {"digits": 3}}, "chain_sum does not accept the options"),
        ({"options": {"min_digits": -1}}, "chain_sum does not accept the options"),
    ],
)
def test_a_wrong_data_set_is_said_at_once(config: dict, message: str):
    with pytest.raises(ValueError, match=message):
        ReasoningGymEnv(**config)


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ValueError, match=r"pip install 'grpo-tui\[reasoning-gym\]'"):
        ReasoningGymEnv()

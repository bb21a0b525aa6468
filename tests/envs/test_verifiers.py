"""Packages written for verifiers run unchanged, and earn what verifiers itself gives the same completions."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.envs.loading import EnvLoadError, make_env

from .scripts import ByteAgent

vf: Any = pytest.importorskip("verifiers", reason="needs the extra verifiers", exc_type=ImportError)
from grpo_tui.envs.plugins.verifiers import VerifiersEnv  # noqa: E402

PACKAGES = Path(__file__).parent / "verifiers_envs"


def made(name: str, **config: Any) -> VerifiersEnv:
    path = "grpo_tui.envs.plugins.verifiers.VerifiersEnv"
    env = make_env(path, {"id": f"{PACKAGES}/{name}", **config})
    assert isinstance(env, VerifiersEnv)
    return env


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def scripted(*rows: list[str]) -> ByteAgent:
    return ByteAgent(lambda row, turn, seen: rows[row % len(rows)][min(turn, len(rows[row % len(rows)]) - 1)])


class Replayed:
    """A client of verifiers that says the recorded turns: what an inference server would have answered."""

    def __new__(cls, turns: list[tuple[str, list[tuple[str, dict[str, Any]]]]]) -> Any:
        Response, ResponseMessage, ToolCall = (vf.types.Response, vf.types.ResponseMessage, vf.types.ToolCall)

        class Server(vf.Client):
            def setup_client(self, config: Any) -> Any: ...
            async def to_native_tool(self, tool: Any) -> Any: ...
            async def to_native_prompt(self, messages: Any) -> Any: ...
            async def get_native_response(self, *a: Any, **k: Any) -> Any: ...
            async def raise_from_native_response(self, response: Any) -> None: ...
            async def from_native_response(self, response: Any) -> Any: ...
            async def close(self) -> None: ...

            async def get_response(self, prompt: Any, *a: Any, **k: Any) -> Any:
                text, calls = turns.pop(0)
                made = [ToolCall(id=f"t{i}", name=n, arguments=json.dumps(g)) for i, (n, g) in enumerate(calls)]
                message = ResponseMessage(
                    content=text, tool_calls=made or None, finish_reason="stop", is_truncated=False
                )
                return Response(id="1", created=0, model="m", message=message)

        return Server(None)


def theirs(env: VerifiersEnv, task: dict[str, Any], said: list[list[tuple[str, list[Any]]]]) -> list[Any]:
    """The states that verifiers makes of the same completions by itself, scored as a group."""
    row = dict(env._table(task["data"])[task["row"] - 1])

    async def run() -> list[Any]:
        states = [await env.env.rollout(row, Replayed(list(turns)), "m", {}) for turns in said]
        await env.env.rubric.score_group(states)
        return states

    return asyncio.run(run())


def total(trajectory: Any) -> float:
    return sum((score.value or 0.0) * score.weight for score in trajectory.steps[-1].scores)


def test_one_turn_with_a_function_that_judges_the_group() -> None:
    env = made("vf_sums.py:load_environment")
    (task,) = env.make_tasks("train", 1, seed=0)
    said = [f"<answer>{task['answer']}</answer>", "the sum is <answer>99</answer>", task["answer"]]
    trial = env.run_trial([task], scripted(*[[text] for text in said]), 3)
    states = theirs(env, task, [[(text, [])] for text in said])
    for trajectory, state in zip(trial["trajectories"], states, strict=True):
        assert total(trajectory) == pytest.approx(state["reward"], abs=1e-12)
        own = {s.name: s.value for s in trajectory.steps[-1].scores}
        assert own == {name: state["metrics"][name] for name in own}
        assert set(own) == {"right", "mentions", "shortest", "format_reward_func"}
        assert trajectory.extra["num_turns"] == 1
        assert trajectory.judged_by == "right"
    assert [t.correct for t in trial["trajectories"]] == [s["reward"] >= env.success_score for s in states]
    assert trial["trajectories"][0].messages[0].role == "system"


def test_several_turns_until_a_stop_condition() -> None:
    env = made("vf_guess.py:load_environment")
    tasks = env.make_tasks("train", 20, seed=1)
    task = next(t for t in tasks if t["answer"] == "6")
    games = [["3", "6"], ["I say 9", "8", "7", "5", "4"], ["200"], ["6"]]
    trial = env.run_trial([task], scripted(*games), 4)
    states = theirs(env, task, [[(text, []) for text in game] for game in games])
    for trajectory, state, game in zip(trial["trajectories"], states, games, strict=True):
        assert len(trajectory.steps) == len(game) == len(state["trajectory"])
        assert total(trajectory) == pytest.approx(state["reward"], abs=1e-12)
        assert trajectory.stop_reason == "answer"
        assert trajectory.extra["stop_condition"] == state["stop_condition"]
    first, _, ended, _ = trial["trajectories"]
    assert first.steps[0].observation == "higher"
    assert ended.steps[-1].observation == "out of range, the game ends"


def test_tools_wrong_arguments_and_several_calls_in_a_turn() -> None:
    env = made("vf_tools.py:load_environment")
    assert [tool.name for tool in env.tools] == ["lookup"]
    assert [(a.name, a.type, a.required) for a in env.tools[0].arguments] == [("fruit", "integer", True)]
    task = next(t for t in env.make_tasks("train", 12, seed=0) if t["answer"] == "15")
    two = call("lookup", fruit=5) + call("lookup", fruit=4)
    wrong = call("lookup", vegetable=5)
    rows = [["Let me see.\n" + two, "There are 15."], [wrong, "12"], [call("weigh", fruit=1), "15"], ["15"]]
    trial = env.run_trial([task], scripted(*rows), 4)
    states = theirs(
        env,
        task,
        [
            [("Let me see.", [("lookup", {"fruit": 5}), ("lookup", {"fruit": 4})]), ("There are 15.", [])],
            [("", [("lookup", {"vegetable": 5})]), ("12", [])],
            [("", [("weigh", {"fruit": 1})]), ("15", [])],
            [("15", [])],
        ],
    )
    for trajectory, state in zip(trial["trajectories"], states, strict=True):
        assert total(trajectory) == pytest.approx(state["reward"], abs=1e-12)
        assert trajectory.extra["total_tool_calls"] == state["metrics"]["total_tool_calls"]
    both, misused, unknown, _ = trial["trajectories"]
    assert [(c.name, c.result) for c in both.steps[0].calls] == [("lookup", "15"), ("lookup", "12")]
    assert "vegetable" in misused.steps[0].observation  # the environment's own words, not ours
    assert unknown.steps[0].action == "weigh"
    assert [t.correct for t in trial["trajectories"]] == [True, False, True, True]


def test_a_tool_with_state_of_its_own() -> None:
    env = made("vf_tools.py:load_stateful")
    assert [a.name for a in env.tools[0].arguments] == ["fruit"]
    (task,) = env.make_tasks("train", 1, seed=0)
    put = call("put", fruit=1)
    trial = env.run_trial([task], scripted([put, put, "done"], ["done"]), 2)
    filled, empty = trial["trajectories"]
    assert (total(filled), total(empty)) == (1.0, 0.0)
    assert filled.steps[1].observation == "2 in the basket"


def test_a_rollout_that_a_limit_ends_is_scored_as_verifiers_scores_it() -> None:
    env = made("vf_guess.py:load_environment")
    (task,) = env.make_tasks("train", 1, seed=1)
    agent = ByteAgent(lambda row, turn, seen: "99", token_limit=40)
    (trajectory,) = env.run_trial([task], agent, 1)["trajectories"]
    assert trajectory.stop_reason == "max_tokens"
    assert trajectory.extra["stop_condition"] == "prompt_too_long"
    assert total(trajectory) == pytest.approx(0.5 / len(trajectory.steps))


def test_held_out_rows_are_no_training_rows() -> None:
    env = made("vf_sums.py:load_environment", args={"rows": 60, "largest": 31})
    train, held_out = (env.make_tasks(split, 1000, seed=0) for split in ("train", "eval"))  # type: ignore[arg-type]
    prompts = [{str(env._table("train")[t["row"] - 1]["prompt"]) for t in side} for side in (train, held_out)]
    assert prompts[0] and prompts[1] and not prompts[0] & prompts[1]
    guess = made("vf_guess.py:load_environment")
    assert {t["data"] for t in guess.make_tasks("eval", 100, seed=0)} == {"eval"}


def test_a_run_keeps_its_signals() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    made("vf_tools.py:load_environment")
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"id": "no_such_env"}, "no_such_env"),
        ({"id": f"{PACKAGES}/vf_sums.py:load_nothing"}, "load_nothing"),
        ({"id": f"{PACKAGES}/vf_sums.py:load_environment", "args": {"colour": 1}}, "colour"),
        ({"id": f"{PACKAGES}/vf_sums.py:vf"}, "cannot be loaded"),
        ({}, "id"),
    ],
)
def test_what_cannot_be_loaded_is_one_sentence(config: dict[str, Any], said: str) -> None:
    with pytest.raises(EnvLoadError, match=said) as raised:
        make_env("grpo_tui.envs.plugins.verifiers.VerifiersEnv", config)
    assert "\n" not in str(raised.value)

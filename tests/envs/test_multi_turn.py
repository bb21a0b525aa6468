import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from grpo_tui.envs.agent import Message
from grpo_tui.envs.base import StepResult, Verdict
from grpo_tui.envs.calculator import CalculatorEnv
from grpo_tui.envs.calls import ToolCall, format_call
from grpo_tui.envs.multi_turn import MultiTurnEnv
from grpo_tui.envs.tools import Argument, ToolSpec
from grpo_tui.envs.trajectory import ComponentScore, Display, StepContext, token_rewards

from .scripts import ByteAgent, demonstrating


class TroubleEnv(MultiTurnEnv):
    """Does to each rollout what its call says."""

    tools = (
        ToolSpec("DO", arguments=(Argument("what", "string"),), produces="thing"),
        ToolSpec("USE", arguments=(Argument("thing", "integer", refers_to="thing"),)),
        ToolSpec("LOOK", modality=frozenset({"video"})),
        ToolSpec(
            "POINT",
            arguments=(Argument("x", "integer", minimum=0, below="width"), Argument("box", "box", required=False)),
        ),
    )
    release = threading.Event()

    def reset(self, task: Mapping[str, Any]) -> tuple[Any, list[Message]]:
        match task.get("reset"):
            case "raise":
                raise RuntimeError("no such file\nat all")
            case "hang":
                self.release.wait(20)
            case "nothing":
                return None  # pyright: ignore[reportReturnType]
            case "role":
                return {}, [{"role": "wizard", "content": "x"}]
            case "long":
                return {}, [{"role": "user", "content": "x" * 5_000_000}]
        return {"n": 0, "rubbish": task.get("rubbish", {})}, [{"role": "user", "content": task.get("prompt", "go")}]

    def context(self, state: Any) -> StepContext:
        return StepContext("image", {"width": 10, "height": 10})

    def step(self, state: Any, call: ToolCall) -> StepResult:
        state["n"] += 1
        what = call.arguments.get("what")
        match what:
            case "raise":
                raise ValueError("broken")
            case "half":
                raise ValueError("half \ud83d" + "x" * 1_000_000)
            case "exit":
                raise SystemExit(3)
            case "hang":
                self.release.wait(20)
            case "slow":
                time.sleep(0.2)
            case "none":
                return None  # pyright: ignore[reportReturnType]
            case "nan":
                return StepResult("x", reward=float("nan"))
            case "long":
                return StepResult("x" * 5_000_000, error="y" * 3_000_000)
            case "number":
                return StepResult(3)  # pyright: ignore[reportArgumentType]
            case "rubbish":
                return StepResult("x", **state["rubbish"])
            case "make":
                return StepResult("made", produced={"thing": (str(state["n"]),)}, reward=0.5)
            case "end":
                return StepResult("bye", reward=1.0, done=True, answer="a", correct=True)
        return StepResult(f"ok {state['n']}", reward=0.25)


def do(what: str) -> str:
    return format_call("DO", {"what": what})


def test_arrays_hold_what_happened():
    env = CalculatorEnv()
    tasks = env.make_tasks("train", 3, seed=1)
    agent = demonstrating(env, tasks, 2)
    out = env.run_trial(tasks, agent, 2, step=7)
    trajectories, session = out["trajectories"], agent.sessions[0]
    assert [t.correct for t in trajectories] == [True] * 6
    assert session.closed
    for row, (trajectory, tokens) in enumerate(zip(trajectories, out["tokens"], strict=True)):
        assert tokens.token_ids.tolist() == session.rows[row]
        assert tokens.agent_mask.sum() == sum(session.agents[row])
        for step in trajectory.steps:
            start, end = step.token_span
            assert bytes(tokens.token_ids[start:end].tolist()).decode() == step.text
            assert tokens.agent_mask[start:end].all()
            assert (tokens.turn[start:end] == step.index).all()
        rewards = token_rewards(trajectory, len(tokens))
        assert np.flatnonzero(rewards).tolist() == [trajectory.steps[-1].token_span[1] - 1]
        assert rewards.sum() == out["final_rewards"][row]
        assert (tokens.logprobs[tokens.agent_mask] == np.float32(-0.5)).all()
    assert out["final_rewards"].dtype == np.float32


def test_rows_are_grouped_by_task_and_ids_are_unique():
    env = CalculatorEnv()
    task = env.make_tasks("train", 1, seed=1)[0]
    out = env.run_trial([task, task], demonstrating(env, [task, task], 3), 3)
    trajectories = out["trajectories"]
    assert [t.rollout for t in trajectories] == [0, 1, 2, 0, 1, 2]
    assert len({t.group for t in trajectories[:3]}) == 1
    assert trajectories[0].group != trajectories[3].group  # the same prompt twice in a batch: two groups
    assert len({t.prompt_id for t in trajectories}) == 1
    assert len({t.id for t in trajectories}) == 6


def test_live_rollouts_advance_together_and_finished_ones_rest():
    env = TroubleEnv(max_turns=4)
    agent = ByteAgent(lambda row, turn, _: do("end" if turn >= row else "go"))
    out = env.run_trial([{}], agent, 4)
    assert agent.sessions[0].acted == [[0, 1, 2, 3], [1, 2, 3], [2, 3], [3]]
    assert [len(t.steps) for t in out["trajectories"]] == [1, 2, 3, 4]
    assert [t.env_reward for t in out["trajectories"]] == [1.0, 1.25, 1.5, 1.75]


def test_each_turns_reward_sits_on_its_last_agent_token():
    env = TroubleEnv(max_turns=3)
    out = env.run_trial([{}], ByteAgent(lambda row, turn, _: do("go")), 1)
    ends = [s.token_span[1] - 1 for s in out["trajectories"][0].steps]
    rewards = token_rewards(out["trajectories"][0], len(out["tokens"][0]))
    expected = np.zeros_like(rewards)
    expected[ends] = 0.25
    assert np.array_equal(rewards, expected)
    assert out["trajectories"][0].stop_reason == "max_turns"
    assert out["trajectories"][0].correct is False


def test_a_turn_without_tokens_gives_its_reward_to_the_token_before():
    class EagerEnv(TroubleEnv):
        def parse(self, text: str) -> ToolCall:
            return ToolCall("DO", {"what": "go"}, text)

    env = EagerEnv(max_turns=2)
    out = env.run_trial([{}], ByteAgent(lambda row, turn, _: "" if turn else "abc"), 1)
    step = out["trajectories"][0].steps[0]
    rewards = token_rewards(out["trajectories"][0], len(out["tokens"][0]))
    assert rewards[step.token_span[1] - 1] == pytest.approx(0.5)


@pytest.mark.parametrize(
    "what, stop_reason, error",
    [
        ("raise", "error", "step 2: ValueError: broken"),
        ("exit", "error", "step 2: SystemExit: 3"),
        ("none", "error", "step returned None, not a StepResult"),
        ("nan", "error", "the reward is nan"),
        ("number", "error", "the observation is a int, not text"),
        ("hang", "timeout", "took longer than 1.5 s"),
    ],
)
def test_a_broken_step_costs_its_own_rollout(what: str, stop_reason: str, error: str):
    env = TroubleEnv(max_turns=3, turn_timeout_s=1.5)
    agent = ByteAgent(lambda row, turn, _: do("end" if turn == 2 else what if (row, turn) == (1, 1) else "go"))
    try:
        out = env.run_trial([{}], agent, 4)
    finally:
        TroubleEnv.release.set()
        TroubleEnv.release = threading.Event()
    broken, *others = [out["trajectories"][i] for i in (1, 0, 2, 3)]
    assert broken.stop_reason == stop_reason
    assert error in broken.error
    assert broken.correct is None
    assert [s.action for s in broken.steps] == ["DO", "DO"]
    assert broken.steps[1].arguments == {"what": what} and broken.steps[1].error
    assert broken.env_reward == 0.25  # what it had earned before
    assert all(t.stop_reason == "answer" and t.correct and t.error is None for t in others)


def test_an_observation_of_megabytes_is_cut():
    env = TroubleEnv(max_turns=2)
    ((step, _),) = [t.steps for t in env.run_trial([{}], ByteAgent(lambda *_: do("long")), 1)["trajectories"]]
    assert step.observation == "x" * 2_000_000 + " … (5000000 characters)"
    assert step.error == "y" * 2_000_000


@pytest.mark.parametrize(
    "rubbish, error",
    [
        ({"images": "abc"}, "pictures must be a tuple of Picture"),
        ({"mask": np.zeros((2, 2))}, "mask is a ndarray, not a Picture"),
        ({"overlay": (1, 2)}, "overlay is a tuple, not an Overlay"),
        ({"produced": {"mask": "12"}}, "produced must map a kind to ids"),
        ({"produced": 3}, "produced must map a kind to ids"),
        ({"produced": None}, "produced must map a kind to ids"),
        ({"images": None}, "pictures must be a tuple of Picture"),
        ({"calls": None}, "calls must be a tuple of Call"),
        ({"calls": ["DO"]}, "calls must be a tuple of Call"),
        ({"display": None}, "display must be a tuple of Display"),
        ({"display": [Display("text", 5)]}, "display must contain text of a kind"),  # pyright: ignore
        ({"answer": 7}, "the answer is a int, not text"),
        ({"error": 7}, "the error is a int, not text"),
        ({"correct": "yes"}, "correct is a str, not a bool"),
        ({"done": "no"}, "done is a str, not a bool"),
        ({"reward": "1"}, "the reward is a str, not a number"),
        ({"reward": float("inf")}, "the reward is inf"),
    ],
)
def test_rubbish_in_a_result_costs_its_own_rollout(rubbish: dict, error: str):
    env = TroubleEnv(max_turns=1)
    out = env.run_trial([{"rubbish": rubbish}], ByteAgent(lambda row, *_: do("end" if row else "rubbish")), 2)
    first, second = out["trajectories"]
    assert first.stop_reason == "error" and error in first.error
    assert second.correct


@pytest.mark.parametrize(
    "method, value, error",
    [
        ("parse", "DO", "parse returned a str"),
        ("parse", ToolCall(3), "parse returned a int as the name"),  # pyright: ignore[reportArgumentType]
        ("parse", ToolCall("DO", [1]), "parse returned arguments"),  # pyright: ignore[reportArgumentType]
        ("context", None, "context returned None"),
        ("context", StepContext(facts=[]), "facts are a list"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_rubbish_from_the_other_methods_costs_rollouts_too(method: str, value: Any, error: str):
    broken = type("Broken", (TroubleEnv,), {method: lambda self, _: value})
    trajectory = broken(max_turns=1).run_trial([{}], ByteAgent(lambda *_: do("go")), 1)["trajectories"][0]
    assert trajectory.stop_reason == "error" and error in trajectory.error


def test_half_characters_and_long_messages_of_an_environment_can_be_sent_and_logged(caplog: pytest.LogCaptureFixture):
    env = TroubleEnv(max_turns=1)
    answered = {"rubbish": {"done": True, "answer": "half \ud83d"}}
    first, second = env.run_trial([answered], ByteAgent(lambda row, *_: do("half" if row else "rubbish")), 2)[
        "trajectories"
    ]
    assert first.answer == "half ?" and second.error.startswith("step 1: ValueError: half ?x")
    assert "Traceback" not in caplog.text and len(caplog.text) < 30_000


def test_numbers_of_numpy_are_numbers():
    env = TroubleEnv(max_turns=1)
    rubbish = {"reward": np.float32(0.5), "done": np.bool_(True), "correct": np.bool_(True)}
    trajectory = env.run_trial([{"rubbish": rubbish}], ByteAgent(lambda *_: do("rubbish")), 1)["trajectories"][0]
    assert (trajectory.env_reward, trajectory.correct, trajectory.stop_reason) == (0.5, True, "answer")
    assert type(trajectory.steps[0].reward) is float and type(trajectory.correct) is bool


def test_numbers_of_numpy_bound_arguments_and_name_resources():
    class Counted(TroubleEnv):
        def context(self, state: Any) -> StepContext:
            return StepContext("image", {"width": np.int64(10)}, {"thing": (np.int64(7), 8)})  # pyright: ignore

    texts = [format_call("POINT", {"x": 12}), format_call("USE", {"thing": 7}), format_call("USE", {"thing": 9})]
    trajectory = Counted(max_turns=3).run_trial([{}], ByteAgent(lambda row, turn, _: texts[turn]), 1)["trajectories"][0]
    assert [s.error for s in trajectory.steps] == ["x 12 >= 10", None, "no thing 9"]


def test_an_exception_that_cannot_be_printed_costs_its_own_rollout_at_once():
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    class SilentEnv(TroubleEnv):
        def step(self, state: Any, call: ToolCall) -> StepResult:
            raise Unprintable

    trajectory = SilentEnv().run_trial([{}], ByteAgent(lambda *_: do("go")), 1)["trajectories"][0]
    assert trajectory.stop_reason == "error" and trajectory.error == "step 1: Unprintable"


@pytest.mark.parametrize(("knows", "correct"), [(True, False), (False, None)])
def test_a_limit_means_a_wrong_answer_only_where_success_is_known(knows: bool, correct: bool | None):
    env = TroubleEnv(max_turns=2)
    env.knows_success = knows
    trajectory = env.run_trial([{}], ByteAgent(lambda *_: do("go")), 1)["trajectories"][0]
    assert trajectory.stop_reason == "max_turns" and trajectory.correct is correct


def test_pictures_that_cannot_be_shown_cost_nothing_else():
    class BlindEnv(TroubleEnv):
        def images(self, state: Any) -> Any:
            raise OSError("no picture")

    env = BlindEnv(max_turns=1, image_store=object())  # pyright: ignore[reportArgumentType]
    assert env.run_trial([{}], ByteAgent(lambda *_: do("end")), 1)["trajectories"][0].correct


@pytest.mark.parametrize("how", ["raise", "hang", "nothing", "role", "long"])
def test_a_broken_reset_costs_its_own_rollouts(how: str):
    env = TroubleEnv(max_turns=1, turn_timeout_s=1.5)
    try:
        out = env.run_trial([{"reset": how}, {}], ByteAgent(lambda row, turn, _: do("end")), 2)
    finally:
        TroubleEnv.release.set()
        TroubleEnv.release = threading.Event()
    assert [t.stop_reason for t in out["trajectories"]] == ["timeout" if how == "hang" else "error"] * 2 + [
        "answer"
    ] * 2
    assert all(t.error.startswith("reset: ") and "\n" not in t.error for t in out["trajectories"][:2])
    assert len(out["tokens"]) == 4
    assert not any(tokens.agent_mask.any() for tokens in out["tokens"][:2])


def test_a_score_that_is_no_number_costs_its_own_rollout():
    class Judging(TroubleEnv):
        def finish(self, states: Any) -> list[Verdict]:
            scores = [ComponentScore("style", value) for value in (0.5, float("nan"), 0.5)]
            return [
                Verdict((score,), correct=right)  # type: ignore[arg-type]
                for score, right in zip(scores, (True, True, "yes"), strict=True)
            ]

    first, second, third = Judging().run_trial([{}], ByteAgent(lambda *_: do("end")), 3)["trajectories"]
    assert first.correct and first.steps[-1].scores == (ComponentScore("style", 0.5),)
    assert second.stop_reason == "error" and second.error == "finish returned nan as the score style"
    assert third.error == "finish returned a str as correct, not a bool"


def test_hanging_rollouts_wait_together_not_one_after_the_other():
    env = TroubleEnv(max_turns=1, turn_timeout_s=1.0, workers=8)
    began = time.perf_counter()
    try:
        out = env.run_trial([{}], ByteAgent(lambda row, turn, _: do("hang")), 6)
    finally:
        TroubleEnv.release.set()
        TroubleEnv.release = threading.Event()
    assert [t.stop_reason for t in out["trajectories"]] == ["timeout"] * 6
    assert time.perf_counter() - began < 5.0  # one after the other would take 6


def test_one_worker_never_runs_two_steps_at_once():
    class CountingEnv(TroubleEnv):
        inside = most = 0

        def step(self, state: Any, call: ToolCall) -> StepResult:
            type(self).inside += 1
            type(self).most = max(self.most, self.inside)
            time.sleep(0.08)
            type(self).inside -= 1
            return StepResult("x", done=True)

    run = ByteAgent(lambda row, turn, _: do("go"))
    CountingEnv(workers=1).run_trial([{}], run, 4)
    assert CountingEnv.most == 1
    CountingEnv(workers=4).run_trial([{}], run, 4)
    assert CountingEnv.most > 1


@pytest.mark.parametrize(
    "text, observation",
    [
        ("no call here", "error: no JSON object in the turn"),
        (format_call("FLY"), "error: no tool FLY"),
        (format_call("DO"), "error: what missing"),
        (format_call("DO", {"what": 3}), "error: what must be string"),
        (format_call("DO", {"what": "go", "hard": 1}), "error: no argument hard"),
        (format_call("USE", {"thing": 7}), "error: no thing 7"),
        (format_call("LOOK"), "error: LOOK needs video"),
        (format_call("POINT", {"x": 10}), "error: x 10 >= 10"),
        (format_call("POINT", {"x": -1}), "error: x -1 < 0"),
        (format_call("POINT", {"x": True}), "error: x must be integer"),
        (format_call("POINT", {"x": 1, "box": [0, 0, 11, 5]}), "error: box outside image"),
        (format_call("POINT", {"x": 1, "box": [5, 5, 5, 9]}), "error: box is empty"),
        (format_call("POINT", {"x": 1, "box": [1, 2, 3]}), "error: box must be [x0, y0, x1, y1]"),
    ],
)
def test_calls_that_do_not_fit_their_tool_are_answered_and_never_carried_out(text: str, observation: str):
    env = TroubleEnv(max_turns=2)
    seen: list[str | None] = []
    agent = ByteAgent(lambda row, turn, said: (seen.append(said), text if turn == 0 else do("go"))[1])
    trajectory = env.run_trial([{}], agent, 1)["trajectories"][0]
    assert trajectory.steps[0].observation == observation == seen[1]
    assert trajectory.steps[0].parse_error or trajectory.steps[0].error
    assert trajectory.steps[1].observation == "ok 1"  # the environment never saw the first


def test_produced_resources_are_in_the_next_context():
    env = TroubleEnv(max_turns=3)
    texts = [do("make"), format_call("USE", {"thing": 1}), do("end")]
    trajectory = env.run_trial([{}], ByteAgent(lambda row, turn, _: texts[turn]), 1)["trajectories"][0]
    assert [dict(s.context.resources) for s in trajectory.steps] == [{}, {"thing": ("1",)}, {"thing": ("1",)}]
    assert trajectory.steps[0].context.facts == {"width": 10, "height": 10}
    assert trajectory.modality == "image"
    assert [s.error for s in trajectory.steps] == [None] * 3


def test_a_rollout_out_of_tokens_ends():
    agent = ByteAgent(lambda row, turn, _: do("go"), token_limit=60)
    trajectory = TroubleEnv().run_trial([{}], agent, 1)["trajectories"][0]
    assert trajectory.stop_reason == "max_tokens"
    assert trajectory.correct is False
    assert len(trajectory.steps) == 2


def test_what_the_agent_raises_is_raised_and_its_session_closed():
    def script(row: int, turn: int, said: str | None) -> str:
        raise KeyError("policy")

    agent = ByteAgent(script)
    with pytest.raises(KeyError, match="policy"):
        TroubleEnv().run_trial([{}], agent, 1)
    assert agent.sessions[0].closed


def test_one_failure_of_many_rollouts_is_logged_once_with_its_traceback(caplog: pytest.LogCaptureFixture):
    TroubleEnv(max_turns=2).run_trial([{}], ByteAgent(lambda row, *_: do("raise" if row else "nan")), 6)
    assert len(caplog.records) == 2
    raised = next(r.getMessage() for r in caplog.records if "broken" in r.getMessage())
    assert "TroubleEnv failed 5 rollouts at step 1: ValueError: broken" in raised and "Traceback" in raised


def test_no_tasks_give_empty_arrays():
    out = CalculatorEnv().run_trial([], ByteAgent(lambda *_: ""), 2)
    assert out["tokens"] == [] and out["trajectories"] == []


def test_control_characters_of_an_observation_are_kept_as_they_are():
    class RudeEnv(TroubleEnv):
        def step(self, state: Any, call: ToolCall) -> StepResult:
            return StepResult("\x1b[2J[/red]\ud800", done=True)

    trajectory = RudeEnv().run_trial([{}], ByteAgent(lambda *_: do("x")), 1)["trajectories"][0]
    assert trajectory.steps[0].observation == "\x1b[2J[/red]?"

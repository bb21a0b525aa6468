"""A policy that reads nothing but its prompt can act in every environment that ships."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from grpo_tui.engine.demonstration.visual import VisualEnv
from grpo_tui.envs.agent import Message
from grpo_tui.envs.base import StepResult
from grpo_tui.envs.calculator import CalculatorEnv
from grpo_tui.envs.content import text_of
from grpo_tui.envs.explain import EXAMPLES
from grpo_tui.envs.multi_turn import MultiTurnEnv
from grpo_tui.envs.plugins.gym import ReasoningGymEnv

from .scripts import ByteAgent, ByteSession


class Reader(ByteAgent):
    """Knows no environment: whatever it does it has from the words of its prompt."""

    def __init__(self) -> None:
        super().__init__(self.say)
        self.calls: list[str] = []

    def knows(self, environment: str) -> bool:
        return False

    def start(self, prompts: Sequence[Sequence[Message]], num_rollouts: int = 1, **given: Any) -> ByteSession:
        text = "\n".join(text_of(m.get("content", "")) for m in prompts[0])
        self.calls = list(self.read(text))
        return super().start(prompts, num_rollouts, **given)

    def say(self, row: int, turn: int, seen: str | None) -> str:
        return self.calls[min(turn, len(self.calls) - 1)]

    def read(self, prompt: str) -> list[str]:
        """A call of each tool that the prompt names, in the form of its example."""
        if "<answer>" in prompt:
            return ["I think. <answer>4</answer>"]
        example = json.loads(next(line for line in prompt.splitlines() if line.startswith("{")))
        calls = []
        for name, arguments in re.findall(r"^- (\w+)\((.*?)\)(?::|$)", prompt, re.MULTILINE):
            values = {}
            for argument in filter(None, arguments.split("; ")):
                key, _, kind = argument.partition(": ")
                choice = re.match(r'"(\w+)" or ', kind)
                values[key.rstrip("?")] = choice[1] if choice else EXAMPLES[kind.split(",")[0]]
            calls.append(json.dumps({**example, "name": name, "arguments": values}))
        return calls


ENVIRONMENTS = {
    "pictures": lambda: VisualEnv(),
    "calculator": CalculatorEnv,
    "reasoning-gym": lambda: pytest.importorskip("reasoning_gym") and ReasoningGymEnv(),
    "reasoning-gym with a scratch pad": lambda: (
        pytest.importorskip("reasoning_gym") and ReasoningGymEnv(scratch_pad=True)
    ),
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_who_reads_the_prompt_can_call_every_tool_and_answer(name):
    env = ENVIRONMENTS[name]()
    trajectory = env.run_trial(env.make_tasks("train", 1, 0), Reader(), 1)["trajectories"][0]
    assert trajectory.stop_reason == "answer"
    assert [s.parse_error for s in trajectory.steps] == [None] * len(trajectory.steps)
    if env.tools:
        assert [s.action for s in trajectory.steps] == [t.name for t in env.tools]


def test_who_knows_an_environment_is_not_told_again():
    env = VisualEnv()
    task = env.make_tasks("train", 1, 0)
    prompts = {}
    for agent in (Reader(), ByteAgent([["x"]])):  # type: ignore[arg-type]
        agent.script = lambda row, turn, seen: "x"
        prompts[type(agent)] = env.run_trial(task, agent, 1)["trajectories"][0].prompt
    assert "SEGMENT_OBJECT_AT(x: integer" in prompts[Reader]
    assert "SEGMENT_OBJECT_AT" not in prompts[ByteAgent]


def test_an_environment_of_ones_own_without_tools_says_what_is_taken_as_the_answer():
    class Free(MultiTurnEnv):
        def reset(self, task: Any) -> Any:
            return None, [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]

        def step(self, state: Any, call: Any) -> StepResult:
            return StepResult("", done=True, answer=call.arguments["text"])

    agent = ByteAgent(lambda row, turn, seen: "4")
    agent.knows = lambda environment: False  # type: ignore[method-assign]
    trajectory = Free().run_trial([{}], agent, 1)["trajectories"][0]
    assert trajectory.prompt == "Everything that you write is taken as your answer.\n\nBe brief.\n\n2 + 2?"
    assert trajectory.answer == "4"

"""Environments for timing steps: ten turns with long observations, and single questions."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from grpo_tui.envs.agent import Message
from grpo_tui.envs.base import Split, StepResult
from grpo_tui.envs.calls import ToolCall
from grpo_tui.envs.multi_turn import MultiTurnEnv

WORDS = "red blue green circle square star size mask object text colour bigger left right up down".split()  # noqa: SIM905


class LongEnv(MultiTurnEnv):
    """Answers every turn with 60 words. The reward counts the digits that the agent wrote."""

    name = "long"

    def make_tasks(self, split: Split, n: int, seed: int) -> list[dict[str, Any]]:
        """`n` numbered tasks."""
        return [{"index": i} for i in range(n)]

    def reset(self, task: Mapping[str, Any]) -> tuple[dict[str, Any], list[Message]]:
        """Return a prompt of 60 words."""
        state = {"random": random.Random(task["index"]), "turns": 0, "digits": 0}
        return state, [{"role": "user", "content": self._words(state)}]

    def step(self, state: dict[str, Any], call: ToolCall) -> StepResult:
        """Return 60 more words."""
        state["turns"] += 1
        state["digits"] += sum(c.isdigit() for c in call.text)
        done = state["turns"] == self.max_turns
        return StepResult(self._words(state), state["digits"] / 100 if done else 0.0, done)

    def _words(self, state: dict[str, Any]) -> str:
        return " ".join(state["random"].choice(WORDS) for _ in range(60))


class ShortEnv(MultiTurnEnv):
    """One question. The reward counts the digits of the answer, so groups differ."""

    name = "short"
    question = "Which number is larger, {} or {}? Explain in one sentence."

    def make_tasks(self, split: Split, n: int, seed: int) -> list[dict[str, Any]]:
        """`n` numbered tasks."""
        return [{"index": i} for i in range(n)]

    def reset(self, task: Mapping[str, Any]) -> tuple[dict[str, Any], list[Message]]:
        """Ask the question with the task's two numbers."""
        pair = random.Random(task["index"]).sample(range(10, 99), 2)
        return {}, [{"role": "user", "content": self.question.format(*pair)}]

    def step(self, state: dict[str, Any], call: ToolCall) -> StepResult:
        """Reward the answer and end the rollout."""
        return StepResult("", sum(c.isdigit() for c in call.text) / 100, done=True)


class EssayEnv(ShortEnv):
    """A question with a long answer."""

    name = "essay"
    question = "Write a story of a thousand words about a journey from town {} to town {}."

"""A task with few prompts in between: easy keys are always right, hard ones nearly always wrong."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any

from grpo_tui.envs.agent import Message
from grpo_tui.envs.base import StepResult
from grpo_tui.envs.calls import ToolCall
from grpo_tui.envs.multi_turn import MultiTurnEnv

KEYS = tuple(string.ascii_uppercase)
EASY, HARD = 10, 14
"""Of the 26 keys, the first 10 are known, the last 14 hardly; two are in between."""
TEXTS = [f"key {k} is {i}" for i, k in enumerate(KEYS)]


class LookupEnv(MultiTurnEnv):
    """`key Q` has one right answer, a number. One turn, reward 1 or 0."""

    name = "lookup"

    @staticmethod
    def answers() -> list[str]:
        """The right answer of each key."""
        return [str((7 * i + 3) % len(KEYS)) for i in range(len(KEYS))]

    @staticmethod
    def tasks() -> list[dict[str, Any]]:
        """One for each key."""
        return [{"key": i} for i in range(len(KEYS))]

    @staticmethod
    def share_known(key: int) -> float:
        """How often the starting policy has been shown the right answer."""
        return 0.98 if key < EASY else 0.08 if key >= len(KEYS) - HARD else 0.4

    @staticmethod
    def prompt(key: int) -> list[Message]:
        """What the agent reads."""
        return [{"role": "user", "content": f"key {KEYS[key]}"}]

    def reset(self, task: Mapping[str, Any]) -> tuple[int, list[Message]]:
        """The key."""
        return task["key"], self.prompt(task["key"])

    def step(self, state: int, call: ToolCall) -> StepResult:
        """Right or wrong."""
        said = call.arguments["text"]
        correct = said == self.answers()[state]
        return StepResult("", float(correct), True, said, correct)

"""A calculator that pays for each call, for policies that write at random: some of their turns count as a call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from grpo_tui.envs.base import StepResult
from grpo_tui.envs.calculator import CalculatorEnv
from grpo_tui.envs.calls import ToolCall


class PayingEnv(CalculatorEnv):
    """A quarter for each call."""

    def parse(self, text: str) -> ToolCall:
        """A text whose length is divisible by 3 adds two numbers."""
        if len(text) % 3:
            return super().parse(text)
        return ToolCall("CALCULATE", {"operation": "add", "a": len(text), "b": 1}, text)

    def step(self, state: Any, call: ToolCall) -> StepResult:
        return replace(super().step(state, call), reward=0.25)


class SometimesEnv(CalculatorEnv):
    """The first turn ends the episode. It is right if its length is divisible by the task's number."""

    name = "sometimes"
    answers_misuse = True

    def make_tasks(self, split: Any, n: int, seed: int) -> list[dict[str, Any]]:
        return [{**task, "divisor": 1 + i % 4} for i, task in enumerate(super().make_tasks(split, n, seed))]

    def step(self, state: Any, call: ToolCall) -> StepResult:
        right = len(call.text) % state.task["divisor"] == 0
        return StepResult("", float(right), done=True, answer=call.text, correct=right)

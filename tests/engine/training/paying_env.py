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

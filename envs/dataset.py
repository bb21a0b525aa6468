"""The environment of `data.source`: conversations from a dataset, with the user's reward functions and tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

from .base import EnvOptions, StepResult
from .calls import ToolCall, means_call, parse_call
from .chat import ChatEnv
from .checked_values import shortened
from .explain import OPTIONAL_CALLS, explain_calls
from .function_tools import load_tools
from .tools import ANSWER, ToolSpec

MAX_RESULT = 20_000
"""Maximum characters of a tool's answer that the policy reads. More would fill any context."""


class DatasetEnv(ChatEnv):
    """Tasks are rows of a dataset (`engine.rollouts.sources`).

    Without tools, the policy answers in one turn. tools: Python functions (`file.py:name`) that it may call. A turn
    without a call is then the answer. If the task has an `answer`, an equal answer earns 1. Otherwise reward functions
    judge it.
    """

    name = "dataset"

    def __init__(
        self,
        tokenizer: object = None,
        *,
        tools: Sequence[str] = (),
        max_turns: int | None = None,
        **config: Unpack[EnvOptions],
    ) -> None:
        super().__init__(tokenizer, max_turns=(8 if tools else 1) if max_turns is None else max_turns, **config)
        self.functions = {tool.spec.name: tool for tool in load_tools(tools)}
        if self.functions:
            self.tools = (*(tool.spec for tool in self.functions.values()), ANSWER)

    def explain(self) -> str:
        """Explain the tools. Without tools, leave the user's prompts unchanged."""
        return explain_calls(self.offered(), OPTIONAL_CALLS) if self.functions else ""

    def offered(self) -> Sequence[ToolSpec]:
        return [tool.spec for tool in self.functions.values()]

    def parse(self, text: str) -> ToolCall:
        """Parse a tool call or the answer.

        A call is a JSON object with a name, as Hermes, Qwen, Llama and Mistral write it. Text that only resembles one
        is an unreadable call.
        """
        if not self.functions:
            return super().parse(text)
        call = parse_call(text)
        if means_call(call, self.functions):
            return call
        return ToolCall(ANSWER.name, {"text": text.strip()}, text)

    def step(self, state: Mapping[str, object], call: ToolCall) -> StepResult:
        if call.name in self.functions:
            return shortened(self.functions[call.name].run(call.arguments), MAX_RESULT)
        return super().step(state, call)

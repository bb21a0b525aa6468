"""A plain conversation: the policy reads the messages of the task and writes one turn, which is the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .agent import Message
from .base import StepResult
from .calls import ToolCall
from .multi_turn import MultiTurnEnv

ROLES = ("system", "user", "assistant")


class ChatEnv(MultiTurnEnv):
    """Tasks `{"messages": [{"role": "user", "content": "…"}], "answer": "…"}`; `answer` is optional.

    There is no tool: what the policy writes is the answer. With a known `answer` it is right when the two are equal
    apart from blanks and case, and the reward is then 1.
    """

    name = "chat"

    def __init__(self, tokenizer: Any = None, **config: Any) -> None:
        super().__init__(tokenizer, **{"max_turns": 1, **config})

    def reset(self, task: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[Message]]:
        """The messages as they are. Raises ValueError when they are no conversation."""
        messages = task.get("messages")
        if not isinstance(messages, list) or not messages:
            raise ValueError('a task needs "messages": a list of {"role": …, "content": …}')
        for number, message in enumerate(messages):
            if not isinstance(message, Mapping) or message.get("role") not in ROLES:
                raise ValueError(f"messages[{number}] must have a role of {', '.join(ROLES)}")
            if not isinstance(message.get("content"), str):
                raise ValueError(f"messages[{number}].content must be text")
        return task, [Message(role=m["role"], content=m["content"]) for m in messages]

    def step(self, state: Mapping[str, Any], call: ToolCall) -> StepResult:
        """The answer ends the rollout."""
        text = str(call.arguments["text"])
        expected = self.expected(state)
        correct = None if expected is None else " ".join(text.lower().split()) == " ".join(expected.lower().split())
        return StepResult("", reward=float(bool(correct)), done=True, answer=text, correct=correct)

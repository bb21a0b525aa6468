"""Conversations out of a dataset, with the user's own reward functions: the environment of `data.source`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .base import StepResult
from .calls import ToolCall
from .chat import ChatEnv


class DatasetEnv(ChatEnv):
    """Tasks are rows of a dataset (`engine.rollouts.sources`): the policy answers in one turn.

    With an `answer` in the task, an equal answer earns 1. Without one nothing is known here of right and wrong: reward
    functions say it.
    """

    name = "dataset"

    def explain(self) -> str:
        """Nothing: the prompts are the user's, and are read as they are."""
        return ""

    def step(self, state: Mapping[str, Any], call: ToolCall) -> StepResult:
        """The answer ends the rollout."""
        if state.get("answer") is not None:
            return super().step(state, call)
        return StepResult("", done=True, answer=str(call.arguments["text"]))

    @classmethod
    def task_of_question(cls, question: str, images: Sequence[str]) -> dict[str, Any] | None:
        """A question is a conversation of one message."""
        return {"messages": [{"role": "user", "content": question}]}

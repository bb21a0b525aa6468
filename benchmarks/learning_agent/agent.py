"""The agent: the OpenAI SDK's tool loop for one task of the visual environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openai import OpenAI

from grpo_tui.engine.demonstration.visual.env import TOOLS, VisualEnv
from grpo_tui.envs.calls import ToolCall
from grpo_tui.envs.checks import find_problem

from .policy import SCHEMAS

TURNS = 6


@dataclass(frozen=True)
class Solved:
    """An ended conversation. id: the id of its last answer."""

    id: str
    right: bool
    turns: int


class Agent:
    """Solves tasks with tools that look at their pictures."""

    def __init__(self, client: OpenAI, env: VisualEnv) -> None:
        self._client = client
        self._env = env

    def solve(self, task: Mapping[str, Any], model: str, user: str) -> Solved:
        """Let the policy call tools until it answers, or for `TURNS` turns."""
        state, opening = self._env.reset(task)
        messages: list[Any] = [dict(message) for message in opening]
        tools: Any = SCHEMAS
        turn, right, done = 0, False, False
        while True:
            turn += 1
            answer = self._client.chat.completions.create(
                model=model, messages=messages, tools=tools, user=user, max_tokens=48
            )
            said = answer.choices[0].message
            messages.append(said)
            for call in said.tool_calls or ():
                assert call.type == "function"
                observed, done, right = self._run(state, call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": observed})
                if done:
                    break
            if done or not said.tool_calls or turn == TURNS:
                return Solved(answer.id, right, turn)

    def _run(self, state: Any, name: str, arguments: str) -> tuple[str, bool, bool]:
        """Return the result of a tool, whether it ends the task, and whether the answer is right."""
        call = ToolCall(name, json.loads(arguments))
        context = self._env.context(state)
        if (problem := find_problem(call, TOOLS, context)) is not None:
            return f"error: {problem}", False, False
        result = self._env.step(state, call)
        return result.observation, result.done, bool(result.correct)

"""An agent that replays turns that are already written, so that their environment judges them as usual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....envs.agent import AgentTurn
from ....envs.trajectory import TokenArrays
from ...agents.live_batch import LiveRow
from .requests import RequestDropped
from .texts import before_stop


class WrittenAgent:
    """An agent whose only turns are already written. Otherwise it behaves like the agent that wrote them."""

    def __init__(self, agent: Any, rows: list[LiveRow], stop: Sequence[str]) -> None:
        self._agent = agent
        self._rows = rows
        self._stop = stop

    def __getattr__(self, name: str) -> object:
        return getattr(self._agent, name)

    def start(self, prompts: object, num_rollouts: int = 1, **_: object) -> WrittenAgent:
        return self

    def act(self, rows: Sequence[int]) -> list[AgentTurn]:
        turns = []
        for row in (self._rows[i] for i in rows):
            start, text = len(row.prompt), before_stop(self._agent.chat.decode(row.tokens), self._stop)
            full = start + len(row.tokens) >= self._agent.config.max_trajectory_tokens
            reason = "stop" if row.ended else "token_limit" if full else "turn_limit"
            turns.append(AgentTurn(text, (start, start + len(row.tokens)), reason))
        return turns

    def observe(self, rows: Sequence[int], observations: Sequence[str]) -> None:
        raise RequestDropped("a conversation has one turn")

    def tokens(self, row: int) -> TokenArrays:
        answer = self._rows[row]
        start, count = len(answer.prompt), len(answer.tokens)
        agent = np.arange(start + count) >= start
        return TokenArrays(
            token_ids=np.array([*answer.prompt, *answer.tokens], np.int32),
            agent_mask=agent,
            logprobs=np.array([0.0] * start + answer.logprobs, np.float32),
            turn=np.where(agent, 0, -1).astype(np.int16),
        )

    def close(self) -> None:
        pass

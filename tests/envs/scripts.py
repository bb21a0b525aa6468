"""An agent whose turns are written by a function, with one token a byte; real enough to check every array against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from grpo_tui.envs.agent import AgentTurn, Message, Seed
from grpo_tui.envs.content import text_of
from grpo_tui.envs.trajectory import TokenArrays

Script = Callable[[int, int, str | None], str]
"""(row, turn, last observation) → the text of the turn."""


class ByteAgent:
    """Sessions of byte tokens; the behaviour log-prob of every agent token is -0.5."""

    def __init__(self, script: Script, token_limit: int = 100_000, turn_limit: int = 100_000) -> None:
        self.script, self.token_limit, self.turn_limit = script, token_limit, turn_limit
        self.sessions: list[ByteSession] = []

    def knows(self, environment: str) -> bool:
        return True

    def start(
        self,
        prompts: Sequence[Sequence[Message]],
        num_rollouts: int = 1,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        seed: Seed = None,
    ) -> ByteSession:
        session = ByteSession([p for p in prompts for _ in range(num_rollouts)], self)
        self.sessions.append(session)
        return session


class ByteSession:
    def __init__(self, prompts: Sequence[Sequence[Message]], agent: ByteAgent) -> None:
        self.agent = agent
        self.rows = [list(" ".join(text_of(m.get("content", "")) for m in p).encode()) for p in prompts]
        self.agents = [[False] * len(r) for r in self.rows]
        self.turns = [[-1] * len(r) for r in self.rows]
        self.turn = [0] * len(self.rows)
        self.observation: list[str | None] = [None] * len(self.rows)
        self.acted: list[list[int]] = []
        self.closed = False

    def act(self, rows: Sequence[int]) -> list[AgentTurn]:
        self.acted.append(list(rows))
        turns = []
        for row in rows:
            whole = self.agent.script(row, self.turn[row], self.observation[row])
            text = whole[: self.agent.turn_limit]
            start = len(self.rows[row])
            self._append(row, text, True)
            over = len(self.rows[row]) >= self.agent.token_limit
            reason = "token_limit" if over else "stop" if text == whole else "turn_limit"
            turns.append(AgentTurn(text, (start, len(self.rows[row])), reason))
        return turns

    def observe(self, rows: Sequence[int], observations: Sequence[str]) -> None:
        for row, text in zip(rows, observations, strict=True):
            self._append(row, text, False)
            self.observation[row] = text
            self.turn[row] += 1

    def tokens(self, row: int) -> TokenArrays:
        mask = np.asarray(self.agents[row], dtype=bool)
        return TokenArrays(
            np.asarray(self.rows[row], dtype=np.int32),
            mask,
            np.where(mask, -0.5, 0.0).astype(np.float32),
            np.asarray(self.turns[row], dtype=np.int16),
        )

    def close(self) -> None:
        self.closed = True

    def _append(self, row: int, text: str, agent: bool) -> None:
        data = list(text.encode("utf-8", "replace"))
        self.rows[row] += data
        self.agents[row] += [agent] * len(data)
        self.turns[row] += [self.turn[row]] * len(data)


def demonstrating(env: Any, tasks: Sequence[Mapping[str, Any]], num_rollouts: int, route: str = "right") -> ByteAgent:
    """An agent that shows `route` on every row."""
    shows = {
        row: env.demonstrate(tasks[row // num_rollouts], route, seed=row) for row in range(len(tasks) * num_rollouts)
    }
    return ByteAgent(lambda row, turn, observation: shows[row].next(observation))

"""A session that repeats recorded turns before the policy acts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...envs.agent import AgentTurn
from .session import TransformersSession


@dataclass(frozen=True)
class RecordedTurn:
    """The agent's tokens of a turn to repeat, int [n]. The policy completes an unfinished one."""

    tokens: np.ndarray
    stop_reason: str = "stop"
    unfinished: bool = False


class ReplaySession(TransformersSession):
    """Begins each row with the turns of `recorded`, of which only the last may be unfinished."""

    def __init__(self, *arguments: Any, recorded: Sequence[RecordedTurn]) -> None:
        super().__init__(*arguments)
        self.recorded = recorded

    def act(self, rows: Sequence[int]) -> list[AgentTurn]:
        turns: dict[int, AgentTurn] = {}
        started = list[int]()
        for row in rows:
            number = int(self.history.turns[row])
            if number >= len(self.recorded) or row in self._refused or self._exhausted[row]:
                continue
            turn, start = self.recorded[number], int(self.history.length[row])
            count = len(turn.tokens)
            rows_of_turn, tokens = np.array([row]), np.asarray(turn.tokens)[None]
            self.history.append_turn(rows_of_turn, tokens, np.zeros((1, count), np.float32), np.array([count]))
            if turn.unfinished:
                started.append(row)
                self.history.turns[row] = number
            else:
                turns[row] = AgentTurn(self.chat.decode(turn.tokens.tolist()), (start, start + count), turn.stop_reason)
        free = [row for row in rows if row not in turns and row not in started]
        if free:
            turns |= zip(free, super().act(free), strict=True)
        if started:
            turns |= zip(started, self._complete(started, self.recorded[-1].tokens), strict=True)
        return [turns[row] for row in rows]

    def _complete(self, rows: list[int], tokens: np.ndarray) -> list[AgentTurn]:
        """Continue turns that begin with these tokens, within the limit of a turn."""
        settings = self.settings
        self.settings = replace(settings, max_turn_tokens=max(1, settings.max_turn_tokens - len(tokens)))
        try:
            rest = super().act(rows)
        finally:
            self.settings = settings
        completed = []
        for row, turn in zip(rows, rest, strict=True):
            start, end = turn.token_span[0] - len(tokens), turn.token_span[1]
            text = self.chat.decode(self.history.ids[row, start:end].tolist())
            completed.append(replace(turn, text=text, token_span=(start, end)))
        return completed

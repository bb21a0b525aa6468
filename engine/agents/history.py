"""The tokens of a batch of conversations on the host, with author, turn and log-prob."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...envs.trajectory import TokenArrays


class TokenHistory:
    """Growing rows of tokens. All arrays are `[rows, width]`, valid up to `length[row]`."""

    def __init__(self, rows: Sequence[Sequence[int]]):
        self.length = np.array([len(r) for r in rows], dtype=np.int64)
        width = int(self.length.max(initial=1))
        self.ids = np.zeros((len(rows), width), dtype=np.int32)
        self.agent = np.zeros((len(rows), width), dtype=bool)
        self.logprobs = np.zeros((len(rows), width), dtype=np.float32)
        self.turn = np.full((len(rows), width), -1, dtype=np.int16)
        self.turns = np.zeros(len(rows), dtype=np.int16)
        """Number of turns that the agent wrote in each row."""
        self.written = np.zeros(len(rows), dtype=np.int64)
        """Number of tokens that the agent wrote in each row."""
        for row, tokens in enumerate(rows):
            self.ids[row, : len(tokens)] = tokens

    def append_turn(self, rows: np.ndarray, tokens: np.ndarray, logprobs: np.ndarray, counts: np.ndarray) -> None:
        """Append the first `counts[i]` of `tokens[i]` (`[n, steps]`) to row `rows[i]`, as the agent's next turn."""
        self._widen(int((self.length[rows] + counts).max(initial=0)))
        i, step = np.nonzero(np.arange(tokens.shape[1]) < counts[:, None])
        row, column = rows[i], self.length[rows][i] + step
        self.ids[row, column] = tokens[i, step]
        self.logprobs[row, column] = logprobs[i, step]
        self.agent[row, column] = True
        self.turn[row, column] = self.turns[row]
        self.length[rows] += counts
        self.written[rows] += counts
        self.turns[rows] += 1

    def append_observation(self, row: int, tokens: Sequence[int]) -> None:
        """Append tokens of the environment, which belong to the turn that they answer."""
        start, end = int(self.length[row]), int(self.length[row]) + len(tokens)
        self._widen(end)
        self.ids[row, start:end] = tokens
        self.turn[row, start:end] = self.turns[row] - 1
        self.length[row] = end

    def arrays(self, row: int) -> TokenArrays:
        """Return a copy of one row."""
        end = int(self.length[row])
        return TokenArrays(
            token_ids=self.ids[row, :end].copy(),
            agent_mask=self.agent[row, :end].copy(),
            logprobs=self.logprobs[row, :end].copy(),
            turn=self.turn[row, :end].copy(),
        )

    def _widen(self, width: int) -> None:
        extra = width - self.ids.shape[1]
        if extra <= 0:
            return
        extra = max(extra, self.ids.shape[1] // 2)
        for name, fill in (("ids", 0), ("agent", False), ("logprobs", 0), ("turn", -1)):
            setattr(self, name, np.pad(getattr(self, name), ((0, 0), (0, extra)), constant_values=fill))

"""The base of all sessions: stores the tokens and images of each row, and ends rows without room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ...envs.agent import Seed, ShownImage
from ...envs.content import Picture
from ...envs.seeds import seed_of
from ...envs.trajectory import TokenArrays
from ..policy.vision.processor import Encoded, VisionError
from ..runs.control.live import BatchTexts
from .chat import ChatBridge
from .sampling import AgentSettings

LONGEST_TOKEN = 1024
"""An upper bound of the characters per token, by which a text may be rejected as too long without tokenising it."""


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

    def append_turn_of(self, row: int, tokens: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        """Append one row's next turn. Without log-probs, they are 0."""
        known = np.zeros(len(tokens)) if logprobs is None else np.array(logprobs)
        self.append_turn(np.array([row]), np.array([tokens]), known[None], np.array([len(tokens)]))

    def append_observation(self, row: int, tokens: Sequence[int]) -> None:
        """Append tokens of the environment, which belong to the turn that they answer."""
        start, end = int(self.length[row]), int(self.length[row]) + len(tokens)
        self._widen(end)
        self.ids[row, start:end] = tokens
        self.turn[row, start:end] = self.turns[row] - 1
        self.length[row] = end

    def branch(self, row: int, source: int, turns: int) -> None:
        """Begin `row` with the prompt and first turns of another row. None of these tokens count as the agent's."""
        end = int((self.turn[source, : self.length[source]] < turns).sum())
        self._widen(end)
        self.ids[row, :end], self.turn[row, :end] = self.ids[source, :end], self.turn[source, :end]
        self.length[row], self.turns[row] = end, turns
        self.written[row] = self.agent[source, :end].sum()

    def alike(self, rows: np.ndarray, num_rollouts: int) -> tuple[np.ndarray, np.ndarray]:
        """Group equal conversations of one prompt. Returns one row per group, and the group number of each of `rows`.

        num_rollouts: consecutive rows with the same prompt, and so with the same images in it.
        """
        sets: dict[tuple[int, bytes], int] = {}
        keys = [(row // num_rollouts, self.ids[row, : self.length[row]].tobytes()) for row in rows.tolist()]
        source = np.array([sets.setdefault(key, len(sets)) for key in keys])
        return rows[np.unique(source, return_index=True)[1]], source

    def arrays(self, row: int) -> TokenArrays:
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


def seeds_of(seed: Seed, prompts: int) -> Sequence[int]:
    """Return one seed per prompt. Without a seed, draw them from torch's global generator."""
    if seed is None:
        seed = int(torch.randint(2**62, ()).item())
    return [seed_of(seed, i) for i in range(prompts)] if isinstance(seed, int) else seed


@dataclass(frozen=True)
class SessionStart:
    """How a session begins.

    prompts: each encoded, or the reason why its rows cannot begin. num_rollouts: rows of each prompt. seed: see
    `Agent.start`. watched: follows the texts while they are written.
    """

    chat: ChatBridge
    settings: AgentSettings
    prompts: Sequence[Encoded | VisionError]
    num_rollouts: int = 1
    seed: Seed = None
    watched: BatchTexts | None = None


class ChatSession:
    """Rows of conversations in the form of a chat template, prompt-major."""

    def __init__(self, start: SessionStart) -> None:
        self.chat = start.chat
        self.settings = start.settings
        self.num_rollouts = start.num_rollouts
        self._watched = start.watched
        rows = [prompt for prompt in start.prompts for _ in range(start.num_rollouts)]
        self._refused = {row: str(p) for row, p in enumerate(rows) if isinstance(p, VisionError)}
        # A refused row needs one token, so that every row has a last one.
        encoded = [Encoded([self.chat.stop_ids[0]], ()) if isinstance(p, VisionError) else p for p in rows]
        # A prompt beyond the limit gets no turn. Cut, it costs no memory in later passes. Pictures must stay whole.
        limit = start.settings.max_trajectory_tokens
        self.history = TokenHistory([p.ids if p.images else p.ids[:limit] for p in encoded])
        self._shown = [tuple(ShownImage(image, -1) for image in p.images) for p in encoded]
        self._exhausted = np.zeros(len(rows), dtype=bool)

    def observe(self, rows: Sequence[int], observations: Sequence[str]) -> None:
        """Append observations, with the chat template's text around them.

        A row whose observation leaves no room for a token of the agent is exhausted; the observation is dropped.
        """
        self.observe_seen(rows, observations, [()] * len(rows))

    def observe_seen(
        self, rows: Sequence[int], observations: Sequence[str], pictures: Sequence[Sequence[Picture]]
    ) -> None:
        """Append observations with pictures. A picture that cannot be shown ends its own row."""
        vision = self.chat.vision
        limit = None if vision is None else vision.max_images
        for row, observation, shown in zip(rows, observations, pictures, strict=True):
            if self._exhausted[row] or row in self._refused:
                continue
            end = int(self.history.length[row])
            if len(observation) > LONGEST_TOKEN * (self.settings.max_trajectory_tokens - end):
                self._exhausted[row] = True
                continue
            try:
                tokens, images = self.chat.answer_seen(int(self.history.ids[row, end - 1]), observation, shown)
            except VisionError as problem:
                self._refused[row] = str(problem)
                continue
            too_many = limit is not None and len(self._shown[row]) + len(images) > limit
            if end + len(tokens) >= self.settings.max_trajectory_tokens or too_many:
                self._exhausted[row] = True
                continue
            self.history.append_observation(row, tokens)
            if images:
                turn = int(self.history.turns[row]) - 1
                self._shown[row] += tuple(ShownImage(image, turn) for image in images)
                self._images_came(row)

    def branch(self, row: int, source: int, turns: int) -> None:
        self.history.branch(row, source, turns)
        if self._shown[source]:
            self._shown[row] = tuple(image for image in self._shown[source] if image.turn < turns)
            self._images_came(row)

    def shown(self, row: int) -> Sequence[ShownImage]:
        return self._shown[row]

    def tokens(self, row: int) -> TokenArrays:
        return self.history.arrays(row)

    def _images_came(self, row: int) -> None:
        """Called after images were appended to a row."""

    def _room(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of tokens that each of these rows may still write, int64 `[n]`."""
        room = self.settings.max_trajectory_tokens - self.history.length[rows]
        if self.settings.max_new_tokens is not None:
            room = np.minimum(room, self.settings.max_new_tokens - self.history.written[rows])
        return room

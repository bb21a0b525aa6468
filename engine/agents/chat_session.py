"""The base of all sessions: the tokens and images of each row, and the end of rows without room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...envs.content import Picture
from ...envs.seeds import seed_of
from ...envs.trajectory import TokenArrays
from ..policy.sight.processor import Encoded, ModelImage, SightError
from .chat import ChatBridge
from .history import TokenHistory


@dataclass(frozen=True)
class ShownImage:
    """An image in a conversation. turn: the turn of the observation that it came with, -1 for the prompt."""

    image: ModelImage
    turn: int

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels as the model sees it."""
        return self.image.size

    @property
    def tokens(self) -> int:
        """The number of tokens of the image."""
        return self.image.tokens


class ChatSession:
    """Rows of conversations in the form of a chat template.

    prompts: one per row, or the reason why the row cannot begin. limit: maximum tokens of a row. max_new_tokens:
    maximum tokens that the agent writes in a row.
    """

    def __init__(
        self,
        chat: ChatBridge,
        prompts: Sequence[Encoded | SightError],
        limit: int,
        max_new_tokens: int | None = None,
    ) -> None:
        self.chat = chat
        self._limit = limit
        self._max_new_tokens = max_new_tokens
        self._refused = {row: str(p) for row, p in enumerate(prompts) if isinstance(p, SightError)}
        # A refused row needs one token, so that every row has a last one.
        begun = [Encoded([chat.stop_ids[0]], ()) if isinstance(p, SightError) else p for p in prompts]
        self.history = TokenHistory([p.ids for p in begun])
        self._shown = [tuple(ShownImage(image, -1) for image in p.images) for p in begun]
        self._exhausted = np.zeros(len(prompts), dtype=bool)

    def observe(self, rows: Sequence[int], observations: Sequence[str]) -> None:
        """Append observations, with the chat template's text around them.

        A row whose observation leaves no room for a token of the agent is exhausted; the observation is left out.
        """
        self.observe_seen(rows, observations, [()] * len(rows))

    def observe_seen(
        self, rows: Sequence[int], observations: Sequence[str], pictures: Sequence[Sequence[Picture]]
    ) -> None:
        """Append observations with pictures. A picture that cannot be shown ends its own row."""
        sight = self.chat.sight
        most = None if sight is None else sight.max_images
        for row, observation, shown in zip(rows, observations, pictures, strict=True):
            if self._exhausted[row] or row in self._refused:
                continue
            end = int(self.history.length[row])
            try:
                tokens, images = self.chat.answer_seen(int(self.history.ids[row, end - 1]), observation, shown)
            except SightError as problem:
                self._refused[row] = str(problem)
                continue
            too_many = most is not None and len(self._shown[row]) + len(images) > most
            if end + len(tokens) >= self._limit or too_many:
                self._exhausted[row] = True
                continue
            self.history.append_observation(row, tokens)
            if images:
                turn = int(self.history.turns[row]) - 1
                self._shown[row] += tuple(ShownImage(image, turn) for image in images)
                self._images_came(row)

    def shown(self, row: int) -> Sequence[ShownImage]:
        """Return the images of a row so far, in the order of their tokens."""
        return self._shown[row]

    def tokens(self, row: int) -> TokenArrays:
        """Return everything of a row so far."""
        return self.history.arrays(row)

    def _images_came(self, row: int) -> None:
        """Called after images were appended to a row."""

    def _room(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of tokens that each of these rows may still write, int64 `[n]`."""
        room = self._limit - self.history.length[rows]
        if self._max_new_tokens is not None:
            room = np.minimum(room, self._max_new_tokens - self.history.written[rows])
        return room


def turn_seed(prompt_seed: int, rollout: int, turn: int) -> int:
    """Return the seed of one turn of one rollout of a prompt, in [0, 2**62)."""
    return seed_of(prompt_seed, rollout, turn)

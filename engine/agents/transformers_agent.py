"""A transformers model as an agent. All live rollouts decode together, with one KV cache over all turns.

A conversation is encoded once. Each prompt is prefilled once per group and copied to its rollouts. An observation is
fed when its row acts again. Rows that finish a turn early leave the batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from ...envs.agent import AgentSession, AgentTurn, Message, Seed
from ..policy.sight.processor import Encoded, Sight, SightError
from .acting_rows import RowsOf, fitting_rows
from .cached_rows import CachedRows
from .chat import ChatBridge
from .chat_agent import ChatAgent, seeds_of, taught
from .decoder import Decoder
from .session import TransformersSession
from .settings import AgentSettings


class TransformersAgent(ChatAgent):
    """An `Agent` (`envs.agent`) that samples from a causal language model of `transformers`, with or without LoRA.

    The model may be in training: sessions run in eval mode without gradients and restore the mode. The weights must not
    change while a session is open. template_kwargs: for the chat template (`enable_thinking=False` for Qwen3). sight:
    the processor of a model that takes images; without it such a model reads text only. Raises `ChatTemplateError` for
    an unsuitable tokenizer; `start` raises `UnsupportedModelError` for an unsuitable model.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        max_turn_tokens: int = 256,
        max_trajectory_tokens: int = 4096,
        stop_strings: Sequence[str] = (),
        device: torch.device | str | None = None,
        observation_role: str = "user",
        template_kwargs: Mapping[str, Any] | None = None,
        sight: Sight | None = None,
        native_calls: bool = True,
    ):
        if device is not None:
            model.to(device)
        self.model = model
        self.tokenizer = tokenizer
        self.decoder = Decoder(model)
        chat = ChatBridge(
            tokenizer,
            stop_ids=self.decoder.stop_ids,
            observation_role=observation_role,
            template_kwargs=template_kwargs,
            sight=sight,
        )
        super().__init__(chat, native_calls=native_calls)
        self.config = AgentSettings(
            temperature, top_p, top_k, max_turn_tokens, max_trajectory_tokens, tuple(stop_strings)
        )

    def knows(self, environment: str) -> bool:
        return taught(self.model, environment)

    @contextmanager
    def settings(self, **changes: Any) -> Iterator[TransformersAgent]:
        """Use other settings for sessions that start inside: `with agent.settings(temperature=0): ...`."""
        before = self.config
        self.config = dataclasses.replace(before, **changes)
        try:
            yield self
        finally:
            self.config = before

    def start(
        self,
        prompts: Sequence[Sequence[Message]],
        num_rollouts: int = 1,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        seed: Seed = None,
    ) -> AgentSession:
        """Open a session (`Agent.start`). Without a seed, one is drawn from torch's global generator.

        A policy without sight reads a sign in the place of a picture.
        """
        seeds, chat = seeds_of(seed, len(prompts)), self.chat_for(tools)
        begun = [self.begin(messages, tools) for messages in prompts]
        watched = self.watched(prompts, num_rollouts, self.config)
        return TransformersSession(self.decoder, chat, self.config, begun, num_rollouts, seeds, self._rows_of, watched)

    def next_turn(self, conversation: Encoded) -> AgentTurn:
        """Sample one turn after a conversation that another agent has written."""
        begun, seeds = [conversation], seeds_of(None, 1)
        session = TransformersSession(self.decoder, self.chat, self.config, begun, 1, seeds, self._rows_of)
        try:
            return session.act([0])[0]
        finally:
            session.close()

    @property
    def keeps_rows(self) -> bool:
        """Whether rows of this model can join and leave a running batch (`live_batch`)."""
        return self.chat.sight is None and self._rows_of is CachedRows

    @cached_property
    def _rows_of(self) -> RowsOf:
        """The form of rows, selected at the first session. For a model that sees, `sight_check` verifies it."""
        return fitting_rows(self.decoder) if self.chat.sight is None else CachedRows

    def begin(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> Encoded | SightError:
        """Return the prompt as tokens and images, or the reason why its rollouts cannot begin."""
        return self.chat.begun(messages, tools)

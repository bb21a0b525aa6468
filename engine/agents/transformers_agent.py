"""A transformers model as an agent: all live rollouts decode together, with one KV cache kept from turn to turn.

A conversation is encoded once. Prompts are prefilled once a group and then shared out to its rollouts; an
observation is fed as tokens when its row acts again (so that a row which has ended costs nothing more); rows that have
finished their turn early leave the batch when enough of them have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from ...envs.agent import AgentSession, Message, Seed
from ...envs.seeds import seed_of
from .chat import ChatBridge
from .decoder import Decoder
from .session import TransformersSession
from .settings import AgentSettings


class TransformersAgent:
    """An `Agent` (see `envs.agent`) that samples from a causal language model of `transformers`, with or without LoRA.

    The model may be under training: sessions run in eval mode without gradients and leave the mode as it was. The
    weights must not change while a session is open, since its cache belongs to them.
    `template_kwargs` go to the chat template (`enable_thinking=False` for Qwen3, for example).
    Raises `ChatTemplateError` or `UnsupportedModelError` for a tokenizer or model that cannot act.
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
    ):
        if device is not None:
            model.to(device)
        self.model = model
        self.tokenizer = tokenizer
        self.decoder = Decoder(model)
        self.chat = ChatBridge(
            tokenizer,
            stop_ids=self.decoder.stop_ids,
            observation_role=observation_role,
            template_kwargs=template_kwargs,
        )
        self.config = AgentSettings(
            temperature, top_p, top_k, max_turn_tokens, max_trajectory_tokens, tuple(stop_strings)
        )

    def knows(self, environment: str) -> bool:
        """Whether the model was taught this environment: its own configuration names those (`known_environments`)."""
        return environment in (getattr(getattr(self.model, "config", None), "known_environments", None) or ())

    @contextmanager
    def settings(self, **changes: Any) -> Iterator[TransformersAgent]:
        """Other settings for the sessions started inside: `with agent.settings(temperature=0): ...`."""
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
        """Open a session; see `Agent.start`. Without a seed, one is drawn from torch's global generator.

        `images` of messages are for policies that see; a text policy reads the messages' text only.
        """
        if seed is None:
            seed = int(torch.randint(2**62, ()).item())
        seeds = [seed_of(seed, i) for i in range(len(prompts))] if isinstance(seed, int) else seed
        tokens = [self.chat.prompt(messages, tools) for messages in prompts]
        return TransformersSession(self.decoder, self.chat, self.config, tokens, num_rollouts, seeds)

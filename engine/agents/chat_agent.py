"""What agents that speak through a chat template share, whoever writes their turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...envs.agent import Message, Seed
from ...envs.content import text_of
from ...envs.seeds import seed_of
from .chat import ChatBridge
from .settings import AgentSettings
from .tool_calls import NativeCalls
from .watching import WatchedBatch, Watcher


class ChatAgent:
    """native_calls: environments that the model was not taught show their tools through its chat template, where that
    has a place for them, and read its own calls."""

    def __init__(self, chat: ChatBridge, *, native_calls: bool) -> None:
        self.chat = chat
        self.call_reader = NativeCalls.of(chat) if native_calls else None
        self._tool_chat = chat.answering_tools() if self.call_reader is not None else chat
        self.watcher: Watcher | None = None
        """Sees what sessions write while they write it."""

    @property
    def sees(self) -> bool:
        """Whether it is shown pictures."""
        return self.chat.sight is not None

    def chat_for(self, tools: Sequence[Mapping[str, Any]] | None) -> ChatBridge:
        """How a session with these tools speaks."""
        return self._tool_chat if tools else self.chat

    def watched(
        self, prompts: Sequence[Sequence[Message]], num_rollouts: int, settings: AgentSettings
    ) -> WatchedBatch | None:
        """What a session of these prompts reports to; None where nobody watches."""
        if self.watcher is None:
            return None
        texts = [text_of(messages[-1].get("content", "")) if messages else "" for messages in prompts]
        most = settings.max_trajectory_tokens if settings.max_new_tokens is None else settings.max_new_tokens
        limit = min(settings.max_turn_tokens, most)
        return self.watcher.begin(texts, num_rollouts, limit * num_rollouts * len(prompts))


def taught(model: torch.nn.Module, environment: str) -> bool:
    """Whether a model was taught an environment: its own configuration names those (`known_environments`)."""
    return environment in (getattr(getattr(model, "config", None), "known_environments", None) or ())


def seeds_of(seed: Seed, prompts: int) -> Sequence[int]:
    """One seed for each prompt; without any, they are drawn from torch's global generator."""
    if seed is None:
        seed = int(torch.randint(2**62, ()).item())
    return [seed_of(seed, i) for i in range(prompts)] if isinstance(seed, int) else seed

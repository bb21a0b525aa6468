"""The base of agents that use a chat template."""

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
    """native_calls: environments that the model was not trained on show their tools through its chat template, if that
    supports tools, and read its native calls.
    """

    def __init__(self, chat: ChatBridge, *, native_calls: bool) -> None:
        self.chat = chat
        self.call_reader = NativeCalls.of(chat) if native_calls else None
        self._tool_chat = chat.answering_tools() if self.call_reader is not None else chat
        self.watcher: Watcher | None = None
        """Follows the texts of sessions while they are written."""

    @property
    def sees(self) -> bool:
        return self.chat.sight is not None

    def chat_for(self, tools: Sequence[Mapping[str, Any]] | None) -> ChatBridge:
        """Return the bridge of a session with these tools."""
        return self._tool_chat if tools else self.chat

    def watched(
        self, prompts: Sequence[Sequence[Message]], num_rollouts: int, settings: AgentSettings
    ) -> WatchedBatch | None:
        """Return the watcher's batch for a session of these prompts, None without a watcher."""
        if self.watcher is None:
            return None
        texts = [text_of(messages[-1].get("content", "")) if messages else "" for messages in prompts]
        most = settings.max_trajectory_tokens if settings.max_new_tokens is None else settings.max_new_tokens
        limit = min(settings.max_turn_tokens, most)
        return self.watcher.begin(texts, num_rollouts, limit * num_rollouts * len(prompts))


def taught(model: torch.nn.Module, environment: str) -> bool:
    """Return whether the model's configuration lists the environment (`known_environments`)."""
    return environment in (getattr(getattr(model, "config", None), "known_environments", None) or ())


def seeds_of(seed: Seed, prompts: int) -> Sequence[int]:
    """Return one seed per prompt. Without a seed, draw them from torch's global generator."""
    if seed is None:
        seed = int(torch.randint(2**62, ()).item())
    return [seed_of(seed, i) for i in range(prompts)] if isinstance(seed, int) else seed

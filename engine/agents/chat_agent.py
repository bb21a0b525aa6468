"""The base of agents that use a chat template."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from ...envs.agent import AgentSession, Message, Seed
from ...envs.content import text_of
from ..runs.control.live import LiveTexts
from .chat import ChatBridge
from .chat_session import SessionStart
from .sampling import AgentSettings
from .tool_calls import NativeCalls


class ChatAgent(ABC):
    """An `Agent` (`envs.agent`). Subclasses implement `_open`.

    native_calls: for environments that the model was not trained on, show the tools through the chat template, if it
    supports tools, and read the model's native calls. Settings hold for the calling thread.
    """

    model: Any
    """The policy, if a model acts."""

    def __init__(self, chat: ChatBridge, settings: AgentSettings, *, native_calls: bool) -> None:
        self.chat = chat
        self.call_reader = NativeCalls.of(chat) if native_calls else None
        self._tool_chat = chat.answering_tools() if self.call_reader is not None else chat
        self._settings = settings
        self._own_settings: ContextVar[AgentSettings | None] = ContextVar("settings", default=None)
        self.watcher: LiveTexts | None = None
        """Follows the texts of sessions while they are written."""

    def knows(self, environment: str) -> bool:
        """Return whether the model's configuration lists the environment (`known_environments`)."""
        return environment in (getattr(self.model.config, "known_environments", None) or ())

    @property
    def sees(self) -> bool:
        return self.chat.vision is not None

    @property
    def config(self) -> AgentSettings:
        """The settings of sessions that start now on this thread."""
        return self._own_settings.get() or self._settings

    @contextmanager
    def settings(self, **changes: Any) -> Iterator[None]:
        """Use other settings for sessions that start inside: `with agent.settings(temperature=0): ...`."""
        token = self._own_settings.set(replace(self.config, **changes))
        try:
            yield
        finally:
            self._own_settings.reset(token)

    def start(
        self,
        prompts: Sequence[Sequence[Message]],
        num_rollouts: int = 1,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        seed: Seed = None,
    ) -> AgentSession:
        """Open a session (`Agent.start`). Without a seed, draw one from torch's global generator.

        A text-only policy reads a placeholder instead of a picture.
        """
        encoded = [self.chat.begun(messages, tools) for messages in prompts]
        watched, settings = None, self.config
        if self.watcher is not None:
            texts = [text_of(messages[-1].get("content", "")) if messages else "" for messages in prompts]
            longest = settings.max_trajectory_tokens if settings.max_new_tokens is None else settings.max_new_tokens
            limit = min(settings.max_turn_tokens, longest)
            watched = self.watcher.begin(texts, num_rollouts, limit * num_rollouts * len(prompts))
        chat = self._tool_chat if tools else self.chat
        return self._open(SessionStart(chat, settings, encoded, num_rollouts, seed, watched))

    @abstractmethod
    def _open(self, start: SessionStart) -> AgentSession: ...

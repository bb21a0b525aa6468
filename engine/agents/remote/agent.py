"""An `Agent` whose turns inference servers write."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from peft import PeftModel

from ....envs.agent import Message, Seed
from ...policy.sight.processor import Encoded
from ..chat import ChatBridge
from ..chat_agent import ChatAgent, seeds_of, taught
from ..settings import AgentSettings
from .adapters import Adapter, AdapterPublisher
from .pool import ServerPool
from .session import RemoteSession


class RemoteAgent(ChatAgent):
    """See `Agent`. The version that acts is the last one that was published (`publish`), or the one of `acting_as`.

    model: the policy that is trained here, whose adapters the servers get. native_calls: see `ChatAgent`.
    Settings and version hold for the calling thread: an evaluation and rollouts of a step ahead may go on side by side.
    """

    def __init__(
        self,
        model: PeftModel,
        chat: ChatBridge,
        settings: AgentSettings,
        pool: ServerPool,
        publisher: AdapterPublisher,
        *,
        native_calls: bool = True,
    ) -> None:
        self.model = model
        super().__init__(chat, native_calls=native_calls)
        self.pool = pool
        self.publisher = publisher
        self._config = settings
        self._own_config: ContextVar[AgentSettings | None] = ContextVar("settings", default=None)
        self._own_version: ContextVar[Adapter | None] = ContextVar("version", default=None)

    @property
    def config(self) -> AgentSettings:
        """How sessions that are started here and now write."""
        return self._own_config.get() or self._config

    def knows(self, environment: str) -> bool:
        """Whether the model was taught this environment."""
        return taught(self.model, environment)

    @contextmanager
    def settings(self, **changes: Any) -> Iterator[RemoteAgent]:
        """Other settings for the sessions started inside: `with agent.settings(temperature=0): ...`."""
        token = self._own_config.set(dataclasses.replace(self.config, **changes))
        try:
            yield self
        finally:
            self._own_config.reset(token)

    @contextmanager
    def acting_as(self, version: Adapter) -> Iterator[None]:
        """This version writes the sessions started inside."""
        token = self._own_version.set(version)
        try:
            yield
        finally:
            self._own_version.reset(token)

    @contextmanager
    def holding(self, version: Adapter) -> Iterator[None]:
        """This version stays on the servers inside."""
        self.publisher.use(version)
        try:
            yield
        finally:
            self.publisher.release(version)

    def publish(self, step: int) -> Adapter:
        """The policy as it is now, after `step` optimiser steps, is what acts from here on."""
        return self.publisher.publish(self.model, step)

    def dismiss(self, server: str, reason: str) -> bool:
        """A server writes no more for this run, unless it is the last one; whether that is so."""
        return self.pool.leave(server, reason)

    def start(
        self,
        prompts: Sequence[Sequence[Message]],
        num_rollouts: int = 1,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        seed: Seed = None,
    ) -> RemoteSession:
        """Open a session; see `Agent.start`. Without a seed, one is drawn from torch's global generator."""
        version = self._own_version.get() or self.publisher.current
        if version is None:
            raise RuntimeError("no version of the policy was published yet")
        seeds, chat = seeds_of(seed, len(prompts)), self.chat_for(tools)
        tokens = [self.chat.prompt(messages, tools) for messages in prompts]
        watched = self.watched(prompts, num_rollouts, self.config)
        return RemoteSession(
            self.pool, self.publisher, version, chat, self.config, tokens, num_rollouts, seeds, watched
        )

    def begin(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> Encoded:
        """A prompt as tokens."""
        return self.chat.seen(messages, tools)

    def close(self) -> None:
        """Take all versions away from the servers, and end the connection."""
        self.publisher.close()
        self.pool.close()

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
    """An `Agent`. The acting version is the last published one, or that of `acting_as`.

    model: the policy in training here, whose adapters the servers get. Settings and version hold for the calling
    thread, so an evaluation and rollouts of the next step can run in parallel.
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
        """The settings of sessions that start now on this thread."""
        return self._own_config.get() or self._config

    def knows(self, environment: str) -> bool:
        return taught(self.model, environment)

    @contextmanager
    def settings(self, **changes: Any) -> Iterator[RemoteAgent]:
        """Use other settings for sessions that start inside: `with agent.settings(temperature=0): ...`."""
        token = self._own_config.set(dataclasses.replace(self.config, **changes))
        try:
            yield self
        finally:
            self._own_config.reset(token)

    @contextmanager
    def acting_as(self, version: Adapter) -> Iterator[None]:
        """Use this version for sessions that start inside."""
        token = self._own_version.set(version)
        try:
            yield
        finally:
            self._own_version.reset(token)

    @contextmanager
    def holding(self, version: Adapter) -> Iterator[None]:
        """Keep this version on the servers inside the block."""
        self.publisher.use(version)
        try:
            yield
        finally:
            self.publisher.release(version)

    def publish(self, step: int) -> Adapter:
        """Make the present policy, after `step` optimiser steps, the acting version."""
        return self.publisher.publish(self.model, step)

    def dismiss(self, server: str, reason: str) -> bool:
        """Remove a server from this run, unless it is the last one; return whether it was removed."""
        return self.pool.leave(server, reason)

    def start(
        self,
        prompts: Sequence[Sequence[Message]],
        num_rollouts: int = 1,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        seed: Seed = None,
    ) -> RemoteSession:
        """Open a session (`Agent.start`). Without a seed, one is drawn from torch's global generator."""
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
        return self.chat.seen(messages, tools)

    def close(self) -> None:
        """Unload all versions and close the connections."""
        self.publisher.close()
        self.pool.close()

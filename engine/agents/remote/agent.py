"""An `Agent` whose turns inference servers write."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from peft import PeftModel

from ....envs.agent import Message, Seed
from ....envs.seeds import seed_of
from ...policy.sight.processor import Encoded
from ..chat import ChatBridge
from ..settings import AgentSettings
from ..tool_calls import NativeCalls
from .adapters import Adapter, AdapterPublisher
from .pool import ServerPool
from .session import RemoteSession


class RemoteAgent:
    """See `Agent`. The version that acts is the last one that was published (`publish`), or the one of `acting_as`.

    model: the policy that is trained here, whose adapters the servers get. native_calls: as of `TransformersAgent`.
    Settings and version hold for the calling thread: an evaluation and rollouts of a step ahead may go on side by side.
    """

    sees = False
    """Servers get token ids alone."""

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
        self.chat = chat
        self.call_reader = NativeCalls.of(chat) if native_calls else None
        self._tool_chat = chat.answering_tools() if self.call_reader is not None else chat
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
        """Whether the model was taught this environment: its own configuration names those (`known_environments`)."""
        return environment in (getattr(self.model.config, "known_environments", None) or ())

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
        if seed is None:
            seed = int(torch.randint(2**62, ()).item())
        seeds = [seed_of(seed, i) for i in range(len(prompts))] if isinstance(seed, int) else seed
        tokens = [self.chat.prompt(messages, tools) for messages in prompts]
        chat = self._tool_chat if tools else self.chat
        return RemoteSession(self.pool, self.publisher, version, chat, self.config, tokens, num_rollouts, seeds)

    def begin(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> Encoded:
        """A prompt as tokens."""
        return self.chat.seen(messages, tools)

    def close(self) -> None:
        """Take all versions away from the servers, and end the connection."""
        self.publisher.close()
        self.pool.close()

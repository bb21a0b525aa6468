"""An `Agent` whose turns inference servers write."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ....configs.schema import RunConfig
from ....envs.agent import AgentTurn, AsyncAgentSession, Message
from ....envs.seeds import seed_of
from ...policy.unwrap import base_of
from ...policy.vision.inputs import VisionModel
from ..chat import ChatBridge
from ..chat_agent import ChatAgent
from ..chat_session import ChatSession, SessionStart, seeds_of
from ..decoder import UnsupportedModelError, stop_ids_of
from ..sampling import AgentSettings
from .adapters import Adapter, AdapterPublisher
from .pool import ServerPool
from .protocol import GenerateRequest

SERVED = "served"
"""A run's default folder for adapter versions."""
FLOAT32_TOLERANCE, HALF_TOLERANCE = 1e-3, 0.05
"""Allowed mean difference of log-probs between two implementations of one policy, in nats per token."""
PROBE_TOKENS = 60
PROBE: list[Message] = [
    {
        "role": "user",
        "content": "Every server that writes for this policy has to say of these words what the trainer says of them: "
        '{"name": "ANSWER", "arguments": {"text": "17"}}. The object at (31, 40) is red; which is the larger one, '
        "and how many are there? First measure, then compare, and answer with one word.",
    }
]


class RemoteSession(ChatSession, AsyncAgentSession):
    """An `AsyncAgentSession` with prompt-major rows. `placement.py` chooses the server of each row.

    A turn depends only on the seed of its prompt, the row's index in its group and the turn's number, so repeating a
    request on another server gives the same tokens.
    """

    def __init__(
        self,
        pool: ServerPool,
        publisher: AdapterPublisher,
        adapter: Adapter,
        start: SessionStart,
    ) -> None:
        super().__init__(start)
        self.adapter = adapter
        self._pool = pool
        self._publisher = publisher
        self._seeds = seeds_of(start.seed, len(start.prompts))
        self._homes = pool.homes(len(start.prompts), start.num_rollouts)
        self._name = f"{adapter.name}-{np.random.default_rng().integers(2**32):08x}"
        self._open = True
        publisher.use(adapter)

    async def act_alone(self, row: int) -> AgentTurn:
        """Let one row write its next turn. A row without room for a token writes nothing: `token_limit`."""
        start = int(self.history.length[row])
        remaining = int(self._room(np.array([row]))[0])
        if self._exhausted[row] or remaining <= 0:
            self._exhausted[row] = True
            return AgentTurn("", (start, start), "token_limit", policy_version=self.adapter.step)
        prompt, rollout = divmod(row, self.num_rollouts)
        number = int(self.history.turns[row])
        request = GenerateRequest(
            model=self.adapter.name,
            token_ids=self.history.ids[row, :start].tolist(),
            max_tokens=min(self.settings.max_turn_tokens, remaining),
            request_id=f"{self._name}-{row}-{number}",
            temperature=self.settings.temperature,
            seed=seed_of(self._seeds[prompt], rollout, number),
            stop_token_ids=self.chat.stop_ids,
        )
        if self._watched is not None:
            self._watched.goes_on(row)
        started = time.perf_counter()
        answer = await self._pool.generate(request, self._homes, row)
        self._pool.spans.add(answer.server, started)
        count = len(answer.token_ids)
        self.history.append_turn_of(row, answer.token_ids, answer.logprobs)
        reason = "stop" if answer.stopped else "token_limit" if count == remaining else "turn_limit"
        text = self.chat.decode(answer.token_ids)
        if self._watched is not None:
            self._watched.wrote(row, count, text)
        version = self.adapter.step
        return AgentTurn(text, (start, start + count), reason, policy_version=version, server=answer.server)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._publisher.release(self.adapter)
            if self._watched is not None:
                self._watched.close()


class RemoteAgent(ChatAgent):
    """An `Agent`. The acting version is the last published one, or that of `acting_as`.

    model: the policy being trained here, whose adapters the servers get. Settings and version hold for the calling
    thread, so that an evaluation and rollouts of the next step can run in parallel.
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
        super().__init__(chat, settings, native_calls=native_calls)
        self.pool = pool
        self.publisher = publisher
        self._own_version: ContextVar[Adapter | None] = ContextVar("version", default=None)

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
        """Make the current policy, after `step` optimiser steps, the acting version."""
        return self.publisher.publish(self.model, step)

    def _open(self, start: SessionStart) -> RemoteSession:
        version = self._own_version.get() or self.publisher.current
        if version is None:
            raise RuntimeError("no policy version has been published yet")
        return RemoteSession(self.pool, self.publisher, version, start)

    def close(self) -> None:
        self.publisher.close()
        self.pool.close()


def open_remote_agent(
    config: RunConfig,
    model: PeftModel | PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    settings: Mapping[str, Any],
    run_dir: Path,
    *,
    name: str = "",
    counted: str = "s",
    request_timeout_s: float | None = None,
    wait_s: float | None = None,
) -> RemoteAgent:
    """Create the agent, without a request to any server.

    settings: fields of `AgentSettings`. name: prefix of version names (default: the run's). counted: see
    `AdapterPublisher`. request_timeout_s, wait_s: see `ServerPool`; None: as configured. Raises MissingHTTPClient, and
    UnsupportedModelError for a vision-language model, since servers get only text.
    """
    rollouts = config.rollouts
    if VisionModel.of(base_of(model)) is not None:
        raise UnsupportedModelError(
            "rollouts.engine: vllm sends only token ids, and this policy sees images. Use transformers instead."
        )
    assert isinstance(model, PeftModel)  # servers get adapters: `configs/checks.py` refuses everything else
    chat = ChatBridge(tokenizer, stop_ids=stop_ids_of(model), template_kwargs=config.model.chat_template_kwargs)
    folder = Path(rollouts.adapter_folder).expanduser() if rollouts.adapter_folder else run_dir.absolute() / SERVED
    pool = ServerPool(
        rollouts.servers,
        key=os.environ.get(rollouts.api_key_env),
        request_timeout_s=rollouts.request_timeout_s if request_timeout_s is None else request_timeout_s,
        wait_s=rollouts.server_wait_s if wait_s is None else wait_s,
    )
    usual = FLOAT32_TOLERANCE if config.model.compute == "float32" else HALF_TOLERANCE
    publisher = AdapterPublisher(
        name or run_dir.name,
        folder,
        rollouts.adapter_folder_on_servers or str(folder.absolute()),
        pool,
        chat.prompt(PROBE)[:PROBE_TOKENS],
        rollouts.probe_tolerance or usual,
        counted=counted,
    )
    return RemoteAgent(model, chat, AgentSettings(**settings), pool, publisher, native_calls=config.model.native_calls)

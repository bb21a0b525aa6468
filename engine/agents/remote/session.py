"""A batch of conversations whose turns inference servers write."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from ....envs.agent import AgentTurn
from ...policy.sight.processor import Encoded
from ..chat import ChatBridge
from ..chat_session import ChatSession, turn_seed
from ..settings import AgentSettings
from ..watching import WatchedBatch
from .adapters import Adapter, AdapterPublisher
from .pool import ServerPool
from .protocol import GenerateRequest


class RemoteSession(ChatSession):
    """An `AsyncAgentSession` with prompt-major rows. `placement.py` chooses the server of each.

    A turn depends only on the seed of its prompt, the row's index in its group and the turn's number, so a repeated
    request to another server gives the same tokens.
    """

    def __init__(
        self,
        pool: ServerPool,
        publisher: AdapterPublisher,
        adapter: Adapter,
        chat: ChatBridge,
        settings: AgentSettings,
        prompts: Sequence[Sequence[int]],
        num_rollouts: int,
        seeds: Sequence[int],
        watched: WatchedBatch | None = None,
    ) -> None:
        rows = [Encoded(list(p), ()) for p in prompts for _ in range(num_rollouts)]
        super().__init__(chat, rows, settings.max_trajectory_tokens, settings.max_new_tokens)
        self.adapter = adapter
        self._pool = pool
        self._watched = watched
        self._publisher = publisher
        self._settings = settings
        self._num_rollouts = num_rollouts
        self._seeds = list(seeds)
        self._homes = pool.homes(len(prompts), num_rollouts)
        self._name = f"{adapter.name}-{np.random.default_rng().integers(2**32):08x}"
        self._open = True
        publisher.use(adapter)

    def act(self, rows: Sequence[int]) -> list[AgentTurn]:
        """Let these rows write their next turn. Returns one `AgentTurn` per row, in order. Not inside a running event
        loop.
        """

        async def all_rows() -> list[AgentTurn]:
            return await asyncio.gather(*(self.act_alone(row) for row in rows))

        return asyncio.run(all_rows())

    async def act_alone(self, row: int) -> AgentTurn:
        """Let one row write its next turn. A row without room for a token writes nothing: `token_limit`."""
        start = int(self.history.length[row])
        room = int(self._room(np.array([row]))[0])
        if self._exhausted[row] or room <= 0:
            self._exhausted[row] = True
            return AgentTurn("", (start, start), "token_limit", policy_version=self.adapter.step)
        prompt, rollout = divmod(row, self._num_rollouts)
        number = int(self.history.turns[row])
        request = GenerateRequest(
            model=self.adapter.name,
            token_ids=self.history.ids[row, :start].tolist(),
            max_tokens=min(self._settings.max_turn_tokens, room),
            request_id=f"{self._name}-{row}-{number}",
            temperature=self._settings.temperature,
            seed=turn_seed(self._seeds[prompt], rollout, number),
            stop_token_ids=self.chat.stop_ids,
            stop=self._settings.stop_strings,
        )
        if self._watched is not None:
            self._watched.goes_on(row)
        answer = await self._pool.generate(request, self._homes[row])
        count = len(answer.token_ids)
        self.history.append_turn(
            np.array([row]),
            np.array([answer.token_ids], dtype=np.int32),
            np.array([answer.logprobs], dtype=np.float32),
            np.array([count]),
        )
        reason = "stop" if answer.stopped else "token_limit" if count == room else "turn_limit"
        text = self.chat.decode(answer.token_ids)
        if self._watched is not None:
            self._watched.wrote(row, count, text)
        version = self.adapter.step
        return AgentTurn(text, (start, start + count), reason, policy_version=version, server=answer.server)

    def close(self) -> None:
        """Release the version that wrote these turns."""
        if self._open:
            self._open = False
            self._publisher.release(self.adapter)
            if self._watched is not None:
                self._watched.close()

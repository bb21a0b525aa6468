"""A batch of conversations whose turns inference servers write."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from ....envs.agent import AgentTurn
from ....envs.trajectory import TokenArrays
from ..chat import ChatBridge
from ..history import TokenHistory
from ..session import turn_seed
from ..settings import AgentSettings
from ..watching import WatchedBatch
from .adapters import Adapter, AdapterPublisher
from .pool import ServerPool
from .protocol import GenerateRequest


class RemoteSession:
    """See `AsyncAgentSession`. Rows are prompt-major; `placement.py` chooses the server of each.

    A turn of a row depends on the seed of its prompt, its place among that prompt's rollouts and the turn's number, so
    a request that is made again, of another server, gives the same tokens.
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
        self.adapter = adapter
        self.history = TokenHistory([p for p in prompts for _ in range(num_rollouts)])
        self._pool = pool
        self._watched = watched
        self._publisher = publisher
        self._chat = chat
        self._settings = settings
        self._num_rollouts = num_rollouts
        self._seeds = list(seeds)
        self._homes = pool.homes(len(prompts), num_rollouts)
        self._exhausted = np.zeros(len(self.history.length), dtype=bool)
        self._name = f"{adapter.name}-{np.random.default_rng().integers(2**32):08x}"
        self._open = True
        publisher.use(adapter)

    def act(self, rows: Sequence[int]) -> list[AgentTurn]:
        """Let these rows write their next turn; one `AgentTurn` per row, in order. Not inside a running event loop."""

        async def all_rows() -> list[AgentTurn]:
            return await asyncio.gather(*(self.act_alone(row) for row in rows))

        return asyncio.run(all_rows())

    async def act_alone(self, row: int) -> AgentTurn:
        """Let one row write its next turn. A row without room for a token writes nothing: `token_limit`."""
        start = int(self.history.length[row])
        if self._exhausted[row] or self._room(row) <= 0:
            self._exhausted[row] = True
            return AgentTurn("", (start, start), "token_limit", policy_version=self.adapter.step)
        prompt, rollout = divmod(row, self._num_rollouts)
        number = int(self.history.turns[row])
        request = GenerateRequest(
            model=self.adapter.name,
            token_ids=self.history.ids[row, :start].tolist(),
            max_tokens=min(self._settings.max_turn_tokens, self._room(row)),
            request_id=f"{self._name}-{row}-{number}",
            temperature=self._settings.temperature,
            seed=turn_seed(self._seeds[prompt], rollout, number),
            stop_token_ids=self._chat.stop_ids,
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
        reason = "stop" if answer.stopped else "token_limit" if self._room(row) <= 0 else "turn_limit"
        text = self._chat.decode(answer.token_ids)
        if self._watched is not None:
            self._watched.wrote(row, count, text)
        version = self.adapter.step
        return AgentTurn(text, (start, start + count), reason, policy_version=version, server=answer.server)

    def observe(self, rows: Sequence[int], observations: Sequence[str]) -> None:
        """Append what the environment answered, with what the chat template puts around it.

        An observation that would leave no room for another token of the agent is left out, and the row is exhausted.
        """
        for row, observation in zip(rows, observations, strict=True):
            if self._exhausted[row]:
                continue
            end = int(self.history.length[row])
            bridge = self._chat.bridge(int(self.history.ids[row, end - 1]), observation)
            if end + len(bridge) >= self._settings.max_trajectory_tokens:
                self._exhausted[row] = True
            else:
                self.history.append_observation(row, bridge)

    def tokens(self, row: int) -> TokenArrays:
        """Everything of this row so far."""
        return self.history.arrays(row)

    def close(self) -> None:
        """The version that wrote these turns is no longer needed here."""
        if self._open:
            self._open = False
            self._publisher.release(self.adapter)
            if self._watched is not None:
                self._watched.close()

    def _room(self, row: int) -> int:
        """How many more tokens this row may write."""
        room = self._settings.max_trajectory_tokens - int(self.history.length[row])
        if self._settings.max_new_tokens is not None:
            room = min(room, self._settings.max_new_tokens - int(self.history.written[row]))
        return room

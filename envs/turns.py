"""Schedule the turns of a trial's rollouts: all together, or each at its own pace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .agent import AgentSession, AgentTurn, AsyncAgentSession
from .guard import AsyncGuard, Outcome, guarded_map
from .live_rollout import CheckedStep, LiveRollout
from .spans import TrialWatches
from .trajectory import StopReason

OnProgress = Callable[[int, int], None]
"""Called with the number of ended rollouts and the total."""


@dataclass(frozen=True)
class Turns:
    """The turns of a trial's rollouts, up to `max_turns` each.

    answer: the environment's reaction to a turn. If it raises or exceeds `timeout_s`, only that rollout fails. note:
    records the outcome of a turn. observe: passes the last observations of these rows to the agent. workers: threads
    for slow answers. on_end: called with each ended row, if rows advance independently. A thread calls what it returns.
    """

    rollouts: Sequence[LiveRollout]
    answer: Callable[[LiveRollout, AgentTurn], CheckedStep]
    note: Callable[[LiveRollout, AgentTurn, Outcome[CheckedStep]], None]
    observe: Callable[[list[int]], None]
    max_turns: int
    timeout_s: float
    workers: int
    watches: TrialWatches
    on_progress: OnProgress | None = None
    on_end: Callable[[int], Callable[[], None] | None] | None = None
    fresh: int | None = None

    def take(self, session: AgentSession) -> None:
        """Run all rollouts to their ends. Exceptions of the agent propagate."""
        if isinstance(session, AsyncAgentSession):
            asyncio.run(self._each_alone(session))
        else:
            self._together(session)

    def _together(self, session: AgentSession) -> None:
        for wave in (False, True):
            rows = [row for row, rollout in enumerate(self.rollouts) if self._later(rollout) is wave]
            while live := [row for row in rows if self._goes_on(self.rollouts[row])]:
                self._advance(session, live)
                self._tell()

    def _advance(self, session: AgentSession, live: list[int]) -> None:
        with self.watches.generating:
            turns = dict(zip(live, session.act(live), strict=True))
            acting = [row for row in live if self._has_acted(self.rollouts[row], turns[row])]
        with self.watches.environment:
            outcomes = guarded_map(
                lambda row: self.answer(self.rollouts[row], turns[row]),
                acting,
                timeout_s=self.timeout_s,
                workers=self.workers,
            )
            for row, outcome in zip(acting, outcomes, strict=True):
                self.note(self.rollouts[row], turns[row], outcome)
        with self.watches.generating:
            going_on = [row for row in acting if self._goes_on(self.rollouts[row])]
            if going_on:
                self.observe(going_on)

    async def _each_alone(self, session: AsyncAgentSession) -> None:
        """Advance each rollout independently of the others. The time during which any of them waits for a turn counts
        as generating."""
        guard = AsyncGuard(timeout_s=self.timeout_s, workers=self.workers)

        async def play(row: int) -> None:
            rollout = self.rollouts[row]
            if self._later(rollout):
                first = row - rollout.number
                await asyncio.gather(*(tasks[r] for r in range(first, first + (self.fresh or 0)) if r in tasks))
            while self._goes_on(rollout):
                if rollout.steps:
                    self.observe([row])
                with self.watches.generating:
                    turn = await session.act_alone(row)
                if self._has_acted(rollout, turn):
                    self.note(rollout, turn, await guard(lambda said: self.answer(rollout, said), turn))
            self._tell()
            if self.on_end is not None and (work := self.on_end(row)) is not None:
                await asyncio.to_thread(work)

        began, generated = time.perf_counter(), self.watches.generating.seconds
        tasks = {row: asyncio.create_task(play(row)) for row, rollout in enumerate(self.rollouts) if rollout.live}
        try:
            await asyncio.gather(*tasks.values())
        finally:  # an exception of the agent in one rollout ends the others, too
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        self.watches.environment.seconds += time.perf_counter() - began - (self.watches.generating.seconds - generated)

    def _later(self, rollout: LiveRollout) -> bool:
        return self.fresh is not None and rollout.number >= self.fresh

    def _goes_on(self, rollout: LiveRollout) -> bool:
        return rollout.live and len(rollout.steps) < self.max_turns

    def _has_acted(self, rollout: LiveRollout, turn: AgentTurn) -> bool:
        """Return whether the agent wrote a turn. If not, the rollout has ended without another step."""
        if turn.stop_reason == "refused":
            rollout.refuse(turn.problem)
        elif turn.stop_reason == "token_limit" and turn.token_span[0] == turn.token_span[1]:
            rollout.stop_reason = StopReason.MAX_TOKENS
        return rollout.live

    def _tell(self) -> None:
        if self.on_progress is not None:
            self.on_progress(sum(not self._goes_on(rollout) for rollout in self.rollouts), len(self.rollouts))

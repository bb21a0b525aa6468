"""The order in which the rollouts of a trial take their turns: all together, or each at its own pace."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .agent import AgentSession, AgentTurn, AsyncAgentSession
from .guard import AsyncGuard, Outcome, guarded_map
from .trajectory import StopReason
from .under_way import Answer, RolloutUnderWay

OnProgress = Callable[[int, int], None]
"""Called with the number of ended rollouts, and of all."""


class Stopwatch(contextlib.AbstractContextManager[None]):
    """`seconds` during which at least one block was open."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._open = 0
        self._began = 0.0

    def __enter__(self) -> None:
        if self._open == 0:
            self._began = time.perf_counter()
        self._open += 1

    def __exit__(self, *error: object) -> None:
        self._open -= 1
        if self._open == 0:
            self.seconds += time.perf_counter() - self._began


@dataclass(frozen=True)
class Turns:
    """The turns of a trial's rollouts, up to `max_turns` each.

    answer: the environment's reaction to a turn. If it raises or exceeds `timeout_s`, only that rollout fails. note:
    records the outcome of a turn. observe: gives the last answers of these rows to the agent. workers: threads for slow
    answers. generating, environment: seconds that the agent and the environment took.
    """

    rollouts: Sequence[RolloutUnderWay]
    answer: Callable[[RolloutUnderWay, AgentTurn], Answer]
    note: Callable[[RolloutUnderWay, AgentTurn, Outcome[Answer]], None]
    observe: Callable[[list[int]], None]
    max_turns: int
    timeout_s: float
    workers: int
    on_progress: OnProgress | None = None
    generating: Stopwatch = field(default_factory=Stopwatch)
    environment: Stopwatch = field(default_factory=Stopwatch)

    def take(self, session: AgentSession) -> None:
        """Play all rollouts to their ends. Exceptions of the agent propagate."""
        if isinstance(session, AsyncAgentSession):
            asyncio.run(self._each_alone(session))
        else:
            self._together(session)

    def _together(self, session: AgentSession) -> None:
        while live := [row for row, rollout in enumerate(self.rollouts) if self._goes_on(rollout)]:
            self._advance(session, live)
            self._tell()

    def _advance(self, session: AgentSession, live: list[int]) -> None:
        with self.generating:
            turns = dict(zip(live, session.act(live), strict=True))
            acting = [row for row in live if self._has_acted(self.rollouts[row], turns[row])]
        with self.environment:
            outcomes = guarded_map(
                lambda row: self.answer(self.rollouts[row], turns[row]),
                acting,
                timeout_s=self.timeout_s,
                workers=self.workers,
            )
            for row, outcome in zip(acting, outcomes, strict=True):
                self.note(self.rollouts[row], turns[row], outcome)
        with self.generating:
            going_on = [row for row in acting if self._goes_on(self.rollouts[row])]
            if going_on:
                self.observe(going_on)

    async def _each_alone(self, session: AsyncAgentSession) -> None:
        """Advance each rollout once its own turn and its own tool are done. Time in which any of them waits for a turn
        counts as generating."""
        guard = AsyncGuard(timeout_s=self.timeout_s, workers=self.workers)

        async def play(row: int) -> None:
            rollout = self.rollouts[row]
            while self._goes_on(rollout):
                if rollout.steps:
                    self.observe([row])
                with self.generating:
                    turn = await session.act_alone(row)
                if self._has_acted(rollout, turn):
                    self.note(rollout, turn, await guard(lambda said: self.answer(rollout, said), turn))
            self._tell()

        began, generated = time.perf_counter(), self.generating.seconds
        tasks = [asyncio.create_task(play(row)) for row, rollout in enumerate(self.rollouts) if rollout.live]
        try:
            await asyncio.gather(*tasks)
        finally:  # what the agent raises for one ends the others, too
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self.environment.seconds += time.perf_counter() - began - (self.generating.seconds - generated)

    def _goes_on(self, rollout: RolloutUnderWay) -> bool:
        return rollout.live and len(rollout.steps) < self.max_turns

    def _has_acted(self, rollout: RolloutUnderWay, turn: AgentTurn) -> bool:
        """Return whether the agent wrote a turn. If it could not, the rollout has ended."""
        if turn.stop_reason == "refused":
            rollout.refuse(turn.problem)
        elif _is_full(turn):
            rollout.stop_reason = StopReason.MAX_TOKENS
        return rollout.live

    def _tell(self) -> None:
        if self.on_progress is not None:
            self.on_progress(sum(not self._goes_on(rollout) for rollout in self.rollouts), len(self.rollouts))


def _is_full(turn: AgentTurn) -> bool:
    """Return whether the last observation left no room for a token. Then there is no step."""
    return turn.stop_reason == "token_limit" and turn.token_span[0] == turn.token_span[1]

"""The rollouts of a trial, and the schedule of their turns: all together, or each at its own pace."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np

from .agent import AgentSession, AgentTurn, AsyncAgentSession, Message, SeeingSession, ShownImage
from .base import StepResult
from .guard import Outcome, guarded, guarded_map
from .live_rollout import LiveRollout
from .spans import TrialWatches
from .trajectory import StopReason, TokenArrays, Trajectory

OnProgress = Callable[[int, int], None]
"""Called with the number of ended rollouts and the total."""
OnGroup = Callable[[int, dict[str, Any]], None]
"""Called with the index of a task and the result of its rollouts."""


@dataclass
class Trial:
    """The rollouts of a trial and their turns, row = task * num_rollouts + rollout. A task is open until its last
    rollout has ended.

    answer: the environment's reaction to a turn. If it raises or exceeds `timeout_s`, only that rollout fails. note:
    records the outcome of a turn. sees: whether the policy is shown pictures. step: the training step. max_turns: per
    rollout. workers: threads for slow answers. fresh: rollouts per task that start at the prompt (None: all).
    hand_over: called on a thread with each task whose last rollout has ended, if rollouts advance independently.
    tokens, shown: the tokens and pictures of each row read so far.
    """

    rollouts: Sequence[LiveRollout]
    prompts: Sequence[Sequence[Message]]
    num_rollouts: int
    session: AgentSession
    answer: Callable[[LiveRollout, AgentTurn], StepResult]
    note: Callable[[LiveRollout, AgentTurn, Outcome[StepResult]], None]
    watches: TrialWatches
    sees: bool
    step: int
    max_turns: int
    timeout_s: float
    workers: int
    fresh: int | None
    on_progress: OnProgress | None
    hand_over: Callable[[int], None] | None = None
    tokens: dict[int, TokenArrays] = field(default_factory=dict)
    shown: dict[int, Sequence[ShownImage]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        live = (row for row, rollout in enumerate(self.rollouts) if rollout.live)
        self._left = Counter(row // self.num_rollouts for row in live)
        self.open = dict.fromkeys(range(len(self.prompts)))

    def rows(self, tasks: Iterable[int]) -> list[int]:
        n = self.num_rollouts
        return [row for task in tasks for row in range(task * n, (task + 1) * n)]

    def read(self, tasks: Iterable[int]) -> None:
        """Read the tokens and pictures of these tasks from the session."""
        for row in self.rows(tasks):
            self.tokens[row] = self.session.tokens(row)
            self.shown[row] = cast("SeeingSession", self.session).shown(row) if self.sees else ()

    def observe(self, rows: Sequence[int]) -> None:
        """Pass the last observations of these rows to the agent."""
        observations = [self.rollouts[row].steps[-1].observation for row in rows]
        if self.sees:
            shown = [self.rollouts[row].answered_with for row in rows]
            cast("SeeingSession", self.session).observe_seen(rows, observations, shown)
        else:
            self.session.observe(rows, observations)

    def close_task(self, row: int) -> int | None:
        """Note that a rollout has ended. If it was the last of its task, read the task and return its index."""
        task = row // self.num_rollouts
        self._left[task] -= 1
        if self._left[task]:
            return None
        del self.open[task]
        self.read([task])
        return task

    def take(self) -> None:
        """Run all rollouts to their ends. Exceptions of the agent propagate."""
        if isinstance(self.session, AsyncAgentSession):
            asyncio.run(self._advance_independently(self.session))
            return
        for wave in (False, True):
            rows = [row for row, rollout in enumerate(self.rollouts) if self._waits_for_wave(rollout) is wave]
            while live := [row for row in rows if self._continues(self.rollouts[row])]:
                self._advance(live)
                self._tell()

    def _advance(self, live: list[int]) -> None:
        with self.watches.generating:
            turns = dict(zip(live, self.session.act(live), strict=True))
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
            going_on = [row for row in acting if self._continues(self.rollouts[row])]
            if going_on:
                self.observe(going_on)

    async def _advance_independently(self, session: AsyncAgentSession) -> None:
        """Advance each rollout independently of the others. The time during which any of them waits for a turn counts
        as generating."""
        threads = ThreadPoolExecutor(self.workers, "environment")

        async def play(row: int) -> None:
            rollout = self.rollouts[row]
            if self._waits_for_wave(rollout):
                first = row - rollout.number
                await asyncio.gather(*(tasks[r] for r in range(first, first + (self.fresh or 0)) if r in tasks))
            while self._continues(rollout):
                if rollout.steps:
                    self.observe([row])
                with self.watches.generating:
                    turn = await session.act_alone(row)
                if self._has_acted(rollout, turn):
                    answer, event_loop = partial(self.answer, rollout), asyncio.get_running_loop()
                    outcome = await event_loop.run_in_executor(threads, guarded, answer, turn, self.timeout_s)
                    self.note(rollout, turn, outcome)
            self._tell()
            if self.hand_over is not None and (task := self.close_task(row)) is not None:
                await asyncio.to_thread(self.hand_over, task)

        started, generated = time.perf_counter(), self.watches.generating.seconds
        tasks = {row: asyncio.create_task(play(row)) for row, rollout in enumerate(self.rollouts) if rollout.live}
        try:
            await asyncio.gather(*tasks.values())
        finally:  # an exception of the agent in one rollout ends the others, too
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        self.watches.environment.seconds += (
            time.perf_counter() - started - (self.watches.generating.seconds - generated)
        )

    def _waits_for_wave(self, rollout: LiveRollout) -> bool:
        return self.fresh is not None and rollout.number >= self.fresh

    def _continues(self, rollout: LiveRollout) -> bool:
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
            self.on_progress(sum(not self._continues(rollout) for rollout in self.rollouts), len(self.rollouts))


def trial_result(
    trajectories: Sequence[Trajectory], tokens: Sequence[TokenArrays], shown: Sequence[Sequence[ShownImage]]
) -> dict[str, object]:
    """Build the result of `MultiTurnEnv.run_trial`, without its timings."""
    return {
        "final_rewards": np.asarray([t.env_reward for t in trajectories], dtype=np.float32),
        "trajectories": trajectories,
        "tokens": tokens,
        "images": shown,
    }

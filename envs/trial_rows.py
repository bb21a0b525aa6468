"""The rollouts of a trial, grouped by task, and the result of `MultiTurnEnv.run_trial`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from .agent import AgentSession, Message, SeeingSession, ShownImage
from .live_rollout import LiveRollout
from .trajectory import TokenArrays, Trajectory

OnGroup = Callable[[int, dict[str, Any]], None]
"""Called with the index of a task and the result of its rollouts."""


@dataclass
class Trial:
    """The rollouts of a trial, row = task * num_rollouts + rollout. A task is open until its last rollout has ended.

    sees: whether the policy is shown pictures. step: the training step. tokens, shown: the tokens and pictures of each
    row read so far.
    """

    rollouts: Sequence[LiveRollout]
    prompts: Sequence[Sequence[Message]]
    num_rollouts: int
    session: AgentSession
    sees: bool
    step: int
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

    def close_task(self, row: int) -> int | None:
        """Note that a rollout has ended. If it was the last of its task, read the task and return its index."""
        task = row // self.num_rollouts
        self._left[task] -= 1
        if self._left[task]:
            return None
        del self.open[task]
        self.read([task])
        return task


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

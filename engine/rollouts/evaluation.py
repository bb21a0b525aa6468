"""Success on held-out tasks: greedy, and as the policy samples."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .rollout import Rollout
from .runner import RolloutRunner, Row


@dataclass(frozen=True)
class Evaluation:
    """Success of one way of choosing tokens: which tasks were answered rightly, and the rollouts of this process."""

    outcomes: list[bool]
    rollouts: list[Rollout]

    @property
    def n(self) -> int:
        """How many tasks were tried."""
        return len(self.outcomes)

    @property
    def success(self) -> float:
        """The share that was answered rightly, in [0, 1]."""
        return sum(self.outcomes) / max(self.n, 1)


def evaluate(
    runner: RolloutRunner,
    rows: Sequence[Row],
    *,
    temperature: float,
    seed: int = 0,
    step: int = 0,
    first: int = 0,
    process_index: int = 0,
    num_processes: int = 1,
    gather: Callable[[list[bool]], list[bool]] | None = None,
) -> Evaluation:
    """One rollout of each task at `temperature` (0: greedy), spread over processes.

    An environment that tells no correctness counts as right where its own reward is positive. `gather(list)` collects
    over processes. `first`: the number of `rows[0]` among all tasks, where these are evaluated in portions. The model
    must be in eval mode.
    """
    mine = rows[process_index::num_processes]
    agent = runner.agent
    settings = getattr(agent, "settings", None)
    with settings(temperature=temperature) if settings is not None else contextlib.nullcontext():
        rollouts = (
            runner.run(
                mine,
                first=first + process_index,
                every=num_processes,
                seed=seed,
                step=step,
                split="eval",
                num_rollouts=1,
                policy_version=step,
            )
            if mine
            else []
        )
    outcomes = [_right(r) for r in rollouts]
    if gather is not None:
        outcomes = gather(outcomes)
    return Evaluation(outcomes, rollouts)


def _right(rollout: Rollout) -> bool:
    known = rollout.trajectory.correct if rollout.trajectory is not None else None
    return bool(known) if known is not None else rollout.final_reward > 0

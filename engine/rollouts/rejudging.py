"""Recorded rollouts scored by other reward functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...configs.schema import RunConfig
from ...envs.trajectory import TokenArrays, Trajectory
from ..policy.sources import load_tokenizer
from .judging import make_judge, special_texts
from .rollout import Rollout
from .runner import Row


class Rejudge:
    """Scores recorded rollouts with the reward functions of a configuration. Raises RewardFunctionError."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._special = special_texts(load_tokenizer(config.model))

    def __call__(
        self, trajectories: Sequence[Trajectory], tokens: Sequence[TokenArrays[memoryview] | None], step: int
    ) -> list[Trajectory]:
        """Return the trajectories with the new scores in place of the recorded ones."""
        rows = [Row("", {}, t.task) for t in trajectories]
        judge = make_judge(self._config.environment, rows, self._special)
        if judge is None:
            return list(trajectories)
        rollouts = [_rollout(_unscored(t), held) for t, held in zip(trajectories, tokens, strict=True)]
        scored = [r.trajectory for r in judge(rollouts, rows, step)]
        return [t for t in scored if t is not None]


def _unscored(trajectory: Trajectory) -> Trajectory:
    steps = tuple(replace(step, scores=()) for step in trajectory.steps)
    known = {} if not trajectory.judged_by else {"correct": None, "judged_by": ""}
    return replace(trajectory, steps=steps, **known)


def _rollout(trajectory: Trajectory, tokens: TokenArrays[memoryview] | None) -> Rollout:
    ids = np.asarray([] if tokens is None else tokens.token_ids, np.int64)
    mask = np.zeros(0, bool) if tokens is None else np.asarray(tokens.agent_mask, bool)
    return Rollout(ids, mask, np.zeros(len(ids), np.int16), np.zeros(len(ids), np.float32), 0, 0, trajectory=trajectory)

"""`python -m grpo_tui.engine.training.rejudging CONFIG RUN_DIR`: score recorded rollouts by other reward functions.

A separate process, because it runs user code and loads the tokenizer. Prints one JSON object that maps the number of
each training rollout to its scores and whether it is correct.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np

from ...configs.loading import load_config
from ...configs.schema import RunConfig
from ...envs.trajectory import TokenArrays, Trajectory
from ..launch.outcome import told_in_one_sentence
from ..policy.sources import load_tokenizer
from ..rollouts.judging import make_judge, special_texts
from ..rollouts.rollout import Rollout
from ..rollouts.runner import Row
from ..runs.read.reader import RunReader
from ..runs.search.query import Query

BATCH = 512
"""Rollouts that the functions get in one call."""


def rejudged(config: RunConfig, reader: RunReader) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the number of each training rollout with its new scores. Raises RewardFunctionError."""
    special = special_texts(load_tokenizer(config.model))
    numbers = [row.n for row in reader.rollouts.page(Query("split:train"), limit=max(1, reader.rollouts.total()))]
    judge = None
    for start in range(0, len(numbers), BATCH):
        part = numbers[start : start + BATCH]
        rollouts = [_rollout(reader.bodies.trajectory(n).trajectory, reader.bodies.tokens(n)) for n in part]
        rows = [Row("", {}, {} if r.trajectory is None else r.trajectory.task) for r in rollouts]
        judge = judge or make_judge(config.environment, rows, special)
        for n, rollout in zip(part, rollouts if judge is None else judge(rollouts, rows), strict=True):
            trajectory = rollout.trajectory
            if trajectory is not None and trajectory.steps:
                scores = [astuple(score) for score in trajectory.steps[-1].scores]
                yield n, {"scores": scores, "correct": trajectory.correct}


def _rollout(trajectory: Trajectory, tokens: TokenArrays[memoryview] | None) -> Rollout:
    """Return a recorded rollout without its scores."""
    steps = tuple(replace(step, scores=()) for step in trajectory.steps)
    correct = None if trajectory.judged_by else trajectory.correct
    trajectory = replace(trajectory, steps=steps, correct=correct, judged_by="")
    ids = np.asarray([] if tokens is None else tokens.token_ids, np.int64)
    mask = np.zeros(0, bool) if tokens is None else np.asarray(tokens.agent_mask, bool)
    return Rollout(ids, mask, np.zeros(len(ids), np.int16), np.zeros(len(ids), np.float32), 0, 0, trajectory=trajectory)


if __name__ == "__main__":
    with told_in_one_sentence(), RunReader(Path(sys.argv[2])) as recorded:
        print(json.dumps(dict(rejudged(load_config(sys.argv[1]), recorded))))

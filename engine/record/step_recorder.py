"""What the trainer writes down about each step: metrics, trajectories, findings. Watching never harms training."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import psutil
import torch

from ..rollouts.samples import Sample
from ..runs.types import TrajectoryRecord

logger = logging.getLogger(__name__)

NAMES = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "learning_rate": "train/learning_rate",
    "entropy": "train/entropy",
    "clip_ratio/region_mean": "train/clip_fraction",
    "kl": "kl/mean",
    "num_tokens": "tokens/total",
}
"""TRL's names and ours."""


class StepRecorder:
    """Writes steps to the run's record and to further sinks (wandb). Any failure is logged once and training goes on.

    writer: an `engine.runs` writer. sinks: objects with `log(step, metrics)`. tokens: keep token arrays, too.
    """

    def __init__(self, writer: Any, *, tokens: bool = True, sinks: Sequence[Any] = ()) -> None:
        self.writer = writer
        self.tokens = tokens
        self.sinks = list(sinks)
        self.seconds = 0.0
        """Spent here since `take_seconds`."""
        self._complained: set[str] = set()

    def step(
        self, step: int, logs: Mapping[str, Any], measured: Mapping[str, Any], samples: Sequence[Sample]
    ) -> dict[str, Any]:
        """One optimiser step: TRL's `logs`, what the trainer measured beyond them, and all rollouts it was made of.

        Returns the metrics as recorded.
        """
        began = time.perf_counter()
        values: dict[str, Any] = {NAMES.get(k, f"trl/{k}"): v for k, v in logs.items() if isinstance(v, (int, float))}
        values |= measured
        values |= rollout_metrics(samples) | memory_metrics()
        self.guard("metrics", lambda: self.writer.metrics(step, values))
        self.trajectories(step, samples, "train")
        for sink in self.sinks:
            self.guard(type(sink).__name__, lambda sink=sink: sink.log(step, values))
        self.seconds += time.perf_counter() - began
        return values

    def trajectories(self, step: int, samples: Sequence[Sample], split: str) -> None:
        """Rollouts of a step, as records."""
        self.guard(
            "trajectories",
            lambda: self.writer.trajectories(
                step, [_record(s, step, split, self.tokens) for s in samples if s.trajectory is not None]
            ),
        )

    def values(self, step: int, values: Mapping[str, Any]) -> None:
        """Metrics outside the rhythm of steps, such as those of an evaluation."""
        self.guard("metrics", lambda: self.writer.metrics(step, values))
        for sink in self.sinks:
            self.guard(type(sink).__name__, lambda sink=sink: sink.log(step, values))

    def event(self, kind: Any, message: str, *, step: int = 0, **data: Any) -> None:
        """See `RunWriter.event`."""
        self.guard("event", lambda: self.writer.event(kind, message, step=step, **data))

    def vocabulary(self, tokenizer: Any) -> None:
        """The text of every token, once, so that a viewer needs no tokenizer."""
        texts = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        byte_level = any("Ġ" in t or "Ċ" in t for t in texts if isinstance(t, str))
        self.guard("vocabulary", lambda: self.writer.vocabulary([t or "" for t in texts], byte_level=byte_level))

    def take_seconds(self) -> float:
        """Seconds spent recording since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def guard(self, what: str, action: Any) -> None:
        """Do it; a failure is logged once for each kind and costs nothing but the record."""
        try:
            action()
        except Exception:
            if what not in self._complained:
                self._complained.add(what)
                logger.exception("the record could not take %s; training goes on", what)


def rollout_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Numbers of a batch of rollouts that need no reward: success, tokens, turns, failures."""
    if not samples:
        return {}
    known = [s.trajectory.correct for s in samples if s.trajectory is not None and s.trajectory.correct is not None]
    failed = [s.trajectory is not None and s.trajectory.error is not None for s in samples]
    values = {
        "tokens/agent": float(sum(int(s.agent_mask.sum()) for s in samples)),
        "tokens/step": float(sum(len(s) for s in samples)),
        "tokens/per_trajectory": float(np.mean([len(s) for s in samples])),
        "turns/mean": float(np.mean([s.turns for s in samples])),
        "environment/failed": float(np.mean(failed)),
        "advantage/std": float(np.std([_scalar(s) for s in samples])),
    }
    if known:
        values["success/train"] = float(np.mean(known))
    return values


def memory_metrics() -> dict[str, float]:
    """Memory of this process, MiB."""
    values = {"memory/rss_mib": psutil.Process().memory_info().rss / 2**20}
    if torch.cuda.is_available():
        values["memory/gpu_mib"] = torch.cuda.max_memory_allocated() / 2**20
    return values


def _record(sample: Sample, step: int, split: str, tokens: bool) -> TrajectoryRecord:
    assert sample.trajectory is not None
    scored = sample.advantages is not None
    return TrajectoryRecord(
        trajectory=sample.trajectory,
        breakdown=sample.breakdown,
        advantage=_scalar(sample) if scored else None,
        step_advantages=_by_turn(sample) if scored else (),
        tokens=sample.token_arrays() if tokens else None,
        policy_version=step - 1 if split == "train" else step,
        split=split,
        formula=sample.formula if scored else None,
    )


def _scalar(sample: Sample) -> float:
    """The one advantage that a person compares: the mean over the agent's tokens."""
    if sample.advantages is None or not sample.agent_mask.any():
        return 0.0
    return float(sample.advantages[sample.agent_mask].mean())


def _by_turn(sample: Sample) -> tuple[float, ...]:
    assert sample.advantages is not None
    out = []
    for turn in range(sample.turns):
        where = sample.agent_mask & (sample.turn == turn)
        out.append(float(sample.advantages[where].mean()) if where.any() else 0.0)
    return tuple(out)

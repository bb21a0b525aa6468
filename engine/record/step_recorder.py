"""Record each training step: metrics, trajectories, findings. A failure to record never harms training."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import psutil
import torch
from transformers import PreTrainedTokenizerBase

from ...configs import metric_names as metric
from ..rollouts.rollout import Rollout
from ..runs.types import EventKind, LossTerms, Split, TrajectoryRecord, Use, UseKind
from ..runs.write.writer import RecordWriter, Values

logger = logging.getLogger(__name__)

NAMES = {
    "loss": metric.LOSS,
    "grad_norm": metric.GRAD_NORM,
    "learning_rate": metric.LEARNING_RATE,
    "entropy": metric.ENTROPY,
    "clip_ratio/region_mean": metric.CLIP_FRACTION,
    "kl": metric.KL_MEAN,
    "kl_unchanged": metric.KL_UNCHANGED,
    "mean_token_accuracy": metric.TOKEN_ACCURACY,
    "num_tokens": metric.TOKENS_TOTAL,
}
"""Maps TRL's metric names to ours."""


class MetricSink(Protocol):
    """Another destination for metrics."""

    def log(self, step: int, metrics: Values, *, axis: str | None = None) -> None:
        """Log a step's metrics by name. A mapping is a distribution. axis: the metric that `step` is a value of."""
        ...


class StepRecorder:
    """Writes steps to the run's record and to other sinks (wandb). Failures are logged once, and training continues.

    tokens: also keep token arrays.
    """

    def __init__(self, writer: RecordWriter, *, tokens: bool = True) -> None:
        self.writer = writer
        self.tokens = tokens
        self.counted = True
        """Whether token counts are known."""
        self.sinks: list[MetricSink] = []
        """Destinations for metrics in addition to the record."""
        self.seconds = 0.0
        """Time spent here since the last `take_seconds`."""
        self._failed: set[str] = set()

    def step(
        self,
        step: int,
        logs: Mapping[str, object],
        measured: Values,
        rollouts: Sequence[Rollout],
        replayed: Sequence[Rollout] = (),
        loss: Mapping[str, LossTerms] | None = None,
    ) -> Values:
        """Record one optimiser step. Returns the metrics as recorded.

        logs: from TRL. measured: other metrics of the trainer. rollouts: all rollouts sampled for the step. replayed:
        rollouts of earlier steps in the batch. loss: the loss terms of each rollout in the batch, by rollout key.
        """
        started = time.perf_counter()
        values: dict[str, float | Mapping[str, float]] = {
            NAMES.get(k, metric.TRL(k)): v for k, v in logs.items() if isinstance(v, (int, float))
        }
        values |= measured
        values |= rollout_metrics(rollouts) | loss_metrics(loss or {}) | memory_metrics()
        self.values(step, values)
        self.trajectories(step, rollouts, Split.TRAIN, loss)
        terms = loss or {}
        uses = [
            (r.id, Use(UseKind.REPLAYED, step, r.draw_probability, r.advantage, loss=terms.get(r.key)))
            for r in replayed
        ]
        self.guard("uses", lambda: self.writer.uses(uses))
        self.seconds += time.perf_counter() - started
        return values

    def trajectories(
        self, step: int, rollouts: Sequence[Rollout], split: str, loss: Mapping[str, LossTerms] | None = None
    ) -> None:
        terms = loss or {}
        self.guard(
            "trajectories",
            lambda: self.writer.trajectories(
                step, [self._record(r, step, split, terms.get(r.key)) for r in rollouts if r.trajectory is not None]
            ),
        )

    def values(self, step: int, values: Values) -> None:
        """Record metrics, which may come between steps, such as those of an evaluation."""
        self.guard("metrics", lambda: self.writer.metrics(step, values))
        for sink in self.sinks:
            self.guard(type(sink).__name__, lambda sink=sink: sink.log(step, values))

    def event(self, kind: EventKind, message: str, *, step: int = 0, **data: object) -> None:
        self.guard("event", lambda: self.writer.event(kind, message, step=step, **data))

    def _record(self, rollout: Rollout, step: int, split: str, loss: LossTerms | None) -> TrajectoryRecord:
        assert rollout.trajectory is not None
        advantages, ratios = rollout.advantages, rollout.log_ratios
        return TrajectoryRecord(
            trajectory=rollout.trajectory,
            breakdown=rollout.breakdown,
            advantage=None if advantages is None else rollout.advantage,
            step_advantages=() if advantages is None else tuple(rollout.mean_by_turn(advantages).tolist()),
            tokens=rollout.token_arrays() if self.tokens else None,
            token_count=len(rollout) if self.counted and not self.tokens else None,
            policy_version=rollout.policy_version,
            split=split,
            formula=rollout.formula,
            use=_own_use(rollout, step, loss),
            log_ratio_sum=None if ratios is None else float(ratios.sum(dtype=np.float64)),
        )

    def vocabulary(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Record the text of every token, so that a viewer needs no tokenizer. Call it once."""
        self.guard("vocabulary", lambda: record_vocabulary(self.writer, tokenizer))

    def take_seconds(self) -> float:
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def guard(self, what: str, action: Callable[[], object]) -> None:
        """Run `action`. A failure is logged once per kind and affects only the record."""
        try:
            action()
        except Exception:
            if what not in self._failed:
                self._failed.add(what)
                logger.exception("%s could not be recorded; training continues", what)


def record_vocabulary(writer: RecordWriter, tokenizer: PreTrainedTokenizerBase) -> None:
    """Record the text of every token. Texts that contain `Ġ` or `Ċ` use the alphabet of byte-level BPE, unless others
    begin with `▁`: the large vocabularies of SentencePiece also contain these letters."""
    texts = [text or "" for text in tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))]
    pieces = any(text.startswith("▁") for text in texts)
    writer.vocabulary(texts, byte_level=not pieces and any("Ġ" in text or "Ċ" in text for text in texts))


def rollout_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return the metrics of a batch of rollouts that need no reward: success, tokens, turns, failures."""
    if not rollouts:
        return {}
    known = [r.trajectory.correct for r in rollouts if r.trajectory is not None and r.trajectory.correct is not None]
    failed = [r.trajectory is not None and r.trajectory.error is not None for r in rollouts]
    values = {
        metric.TOKENS_AGENT: float(sum(r.agent_tokens for r in rollouts)),
        metric.TOKENS_STEP: float(sum(len(r) for r in rollouts)),
        metric.TOKENS_PER_ROLLOUT: float(np.mean([len(r) for r in rollouts])),
        metric.TURNS: float(np.mean([r.turns for r in rollouts])),
        metric.ENVIRONMENT_FAILED: float(np.mean(failed)),
        metric.ADVANTAGE_STD: float(np.std([r.advantage for r in rollouts])),
    }
    if known:
        values[metric.SUCCESS_TRAIN] = float(np.mean(known))
    return values


def loss_metrics(loss: Mapping[str, LossTerms]) -> dict[str, float]:
    """Return entropy and clip fraction over all agent tokens of the step. TRL averages them over micro-batches."""
    tokens = sum(t.tokens for t in loss.values())
    if not tokens:
        return {}
    values = {metric.ENTROPY: sum(t.entropy for t in loss.values()) / tokens}
    if all(t.policy is not None for t in loss.values()):
        values[metric.CLIP_FRACTION] = sum(sum(t.low) + sum(t.high) for t in loss.values()) / tokens
    return values


def memory_metrics() -> dict[str, float]:
    """Return the memory of this process in MiB."""
    values = {metric.MEMORY_RSS: psutil.Process().memory_info().rss / 2**20}
    if torch.cuda.is_available():
        values[metric.MEMORY_GPU] = torch.cuda.max_memory_allocated() / 2**20
    return values


def _own_use(rollout: Rollout, step: int, loss: LossTerms | None) -> Use | None:
    """Return how the rollout's own step used it; None if it is not used for learning."""
    if not rollout.selected:
        return None
    trained = rollout.selected == UseKind.TRAINED
    return Use(
        UseKind(rollout.selected), step, 1.0 if trained else None, rollout.advantage if trained else None, loss=loss
    )

"""What the trainer writes down about each step: metrics, trajectories, findings. Watching never harms training."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import psutil
import torch
from transformers import PreTrainedTokenizerBase

from ...configs import metric_names as metric
from ..rollouts.rollout import Rollout
from ..runs.null_writer import Values
from ..runs.types import EventKind, LossTerms, TrajectoryRecord, Use
from ..runs.writer import RecordWriter

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
"""TRL's names and ours."""


class MetricSink(Protocol):
    """A further place for numbers."""

    def log(self, step: int, metrics: Values, *, axis: str | None = None) -> None:
        """The metrics of a step, by name; a mapping is a distribution. axis: the metric whose value `step` is."""
        ...


class StepRecorder:
    """Writes steps to the run's record and to further sinks (wandb). Any failure is logged once and training goes on.

    tokens: keep token arrays, too.
    """

    def __init__(self, writer: RecordWriter, *, tokens: bool = True) -> None:
        self.writer = writer
        self.tokens = tokens
        self.sinks: list[MetricSink] = []
        """Where numbers go besides the record."""
        self.seconds = 0.0
        """Spent here since `take_seconds`."""
        self._complained: set[str] = set()

    def step(
        self,
        step: int,
        logs: Mapping[str, Any],
        measured: Mapping[str, Any],
        rollouts: Sequence[Rollout],
        replayed: Sequence[Rollout] = (),
        loss: Mapping[str, LossTerms] | None = None,
    ) -> dict[str, Any]:
        """One optimiser step: TRL's `logs`, what the trainer measured beyond them, all rollouts that were made for it,
        those of earlier steps that were replayed in it, and what each of the batch put into the loss, by its id.

        Returns the metrics as recorded.
        """
        began = time.perf_counter()
        values: dict[str, Any] = {
            NAMES.get(k, metric.TRL(k)): v for k, v in logs.items() if isinstance(v, (int, float))
        }
        values |= measured
        values |= rollout_metrics(rollouts) | loss_metrics(loss or {}) | memory_metrics()
        self.guard("metrics", lambda: self.writer.metrics(step, values))
        self.trajectories(step, rollouts, "train", loss)
        terms = loss or {}
        uses = [(r.id, Use("replayed", step, r.draw_probability, r.advantage, loss=terms.get(r.key))) for r in replayed]
        self.guard("uses", lambda: self.writer.uses(uses))
        for sink in self.sinks:
            self.guard(type(sink).__name__, lambda sink=sink: sink.log(step, values))
        self.seconds += time.perf_counter() - began
        return values

    def trajectories(
        self, step: int, rollouts: Sequence[Rollout], split: str, loss: Mapping[str, LossTerms] | None = None
    ) -> None:
        """Rollouts of a step, as records."""
        terms = loss or {}
        self.guard(
            "trajectories",
            lambda: self.writer.trajectories(
                step,
                [_record(r, step, split, self.tokens, terms.get(r.key)) for r in rollouts if r.trajectory is not None],
            ),
        )

    def values(self, step: int, values: Mapping[str, Any]) -> None:
        """Metrics outside the rhythm of steps, such as those of an evaluation."""
        self.guard("metrics", lambda: self.writer.metrics(step, values))
        for sink in self.sinks:
            self.guard(type(sink).__name__, lambda sink=sink: sink.log(step, values))

    def event(self, kind: EventKind, message: str, *, step: int = 0, **data: Any) -> None:
        """See `RunWriter.event`."""
        self.guard("event", lambda: self.writer.event(kind, message, step=step, **data))

    def vocabulary(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """The text of every token, once, so that a viewer needs no tokenizer."""
        self.guard("vocabulary", lambda: record_vocabulary(self.writer, tokenizer))

    def take_seconds(self) -> float:
        """Seconds spent recording since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def guard(self, what: str, action: Callable[[], object]) -> None:
        """Do it; a failure is logged once for each kind and costs nothing but the record."""
        try:
            action()
        except Exception:
            if what not in self._complained:
                self._complained.add(what)
                logger.exception("the record could not take %s; training goes on", what)


def record_vocabulary(writer: RecordWriter, tokenizer: PreTrainedTokenizerBase) -> None:
    """The text of every token. What holds `Ġ` or `Ċ` is in the alphabet of byte-level BPE."""
    texts = [text or "" for text in tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))]
    writer.vocabulary(texts, byte_level=any("Ġ" in text or "Ċ" in text for text in texts))


def rollout_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Numbers of a batch of rollouts that need no reward: success, tokens, turns, failures."""
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
    """Shares over all agent tokens of the step; TRL's own are means over its micro-batches."""
    tokens = sum(t.tokens for t in loss.values())
    if not tokens:
        return {}
    values = {metric.ENTROPY: sum(t.entropy for t in loss.values()) / tokens}
    if all(t.policy is not None for t in loss.values()):
        values[metric.CLIP_FRACTION] = sum(sum(t.low) + sum(t.high) for t in loss.values()) / tokens
    return values


def memory_metrics() -> dict[str, float]:
    """Memory of this process, MiB."""
    values = {metric.MEMORY_RSS: psutil.Process().memory_info().rss / 2**20}
    if torch.cuda.is_available():
        values[metric.MEMORY_GPU] = torch.cuda.max_memory_allocated() / 2**20
    return values


def _record(rollout: Rollout, step: int, split: str, tokens: bool, loss: LossTerms | None) -> TrajectoryRecord:
    assert rollout.trajectory is not None
    advantages, ratios = rollout.advantages, rollout.log_ratios
    return TrajectoryRecord(
        trajectory=rollout.trajectory,
        breakdown=rollout.breakdown,
        advantage=None if advantages is None else rollout.advantage,
        step_advantages=() if advantages is None else tuple(rollout.mean_by_turn(advantages).tolist()),
        tokens=rollout.token_arrays() if tokens else None,
        policy_version=rollout.policy_version,
        split=split,
        formula=rollout.formula,
        use=_own_use(rollout, step, loss),
        log_ratio_sum=None if ratios is None else float(ratios.sum(dtype=np.float64)),
    )


def _own_use(rollout: Rollout, step: int, loss: LossTerms | None) -> Use | None:
    """What the rollout's own step did with it; None for one that nothing learns from."""
    if not rollout.selected:
        return None
    trained = rollout.selected == "trained"
    return Use(rollout.selected, step, 1.0 if trained else None, rollout.advantage if trained else None, loss=loss)

"""Check a whole record, one step after another, and selective sample replay: the buffer and the draws of each step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ...configs import metric_names as metric
from ...configs.schema import RunConfig
from ...configs.sections.training import ReplayConfig
from ..runs.read.reader import RunReader
from ..runs.types import Use
from .advantages import AdvantageCheck
from .items import RecordedRollout, steps_of
from .ledger import SINGLE, Report
from .loss import Loss
from .metrics import StepMetrics
from .rewards import Rewards


def recompute(reader: RunReader, config: RunConfig) -> Report:
    """Recompute every number of a training run. config: the run's own configuration.

    Only training rollouts are checked, not those of requests or evaluations.
    """
    in_force = [(e.step, e.data) for e in reader.events(kinds=["rewards"], limit=100_000)]
    return recompute_steps(steps_of(reader), reader.metrics.by_step(), config, in_force)


def recompute_steps(
    steps: Iterable[tuple[int, list[RecordedRollout]]],
    metrics: Mapping[int, Mapping[str, float]],
    config: RunConfig,
    in_force: Sequence[tuple[int, Mapping[str, object]]] = (),
) -> Report:
    """Recompute from the rollouts of each step and the metrics of each step by name. in_force: the weights and rules
    that applied after a step (events of kind `rewards`, in order)."""
    report = Report()
    replay = config.training.replay
    one_batch = replay.mode != "dapo"
    if not one_batch:
        report.given["running statistics"] = "dynamic sampling scores a step in several batches, some left out"
    rewards = Rewards(config.rewards, report, running=one_batch, in_force=in_force)
    advantages = AdvantageCheck(config.training, report)
    buffer = Replay(replay, report)
    loss = Loss(config.training, report)
    means = StepMetrics(report, one_batch)
    training = config.training
    rows = training.trl.get("generation_batch_size") or training.prompts_per_step * training.num_generations
    later: dict[int, list[tuple[RecordedRollout, Use]]] = {}
    for step, items in steps:
        for item in items:
            behind = step - 1 - (item.record.policy_version or 0)
            allowed = min(max(behind, 0), config.rollouts.max_staleness)
            report.same(item.place, "policy version", item.record.policy_version, step - 1 - allowed)
            length = item.row.tokens if item.tokens is None else len(item.tokens)
            listed = {"correct": item.record.trajectory.correct, "turns": len(item.record.trajectory.steps)}
            for name, value in {**listed, "tokens": length}.items():
                report.same(item.place, f"{name} in the list", getattr(item.row, name), value)
            for use in item.uses:
                if use.kind == "replayed":
                    later.setdefault(use.step, []).append((item, use))
        drawn = later.pop(step, [])
        rewards.step(items)
        signal = advantages.step(items, len(drawn))
        buffer.step(step, drawn, signal)
        numbers = metrics.get(step, {})
        own = [(item, item.record.use) for item in items if item.record.use is not None]
        loss.step(step, [*own, *drawn], items, numbers)
        means.step(step, items, len(signal), len(drawn), rows, numbers)
    names = {name for values in metrics.values() for name in values}
    measured = names - means.known - {metric.LOSS, metric.ENTROPY, metric.CLIP_FRACTION, metric.KL_MEAN}
    if measured:
        report.given[f"{len(measured)} measured metrics"] = ", ".join(sorted(measured))
    return report


@dataclass(frozen=True)
class ReplayEntry:
    """A rollout in the buffer. magnitude: the mean of |advantage| over its agent tokens."""

    id: str
    version: int
    magnitude: float
    advantage: float


class Replay:
    """Follows the buffer, one step after another."""

    def __init__(self, config: ReplayConfig, report: Report) -> None:
        self.config = config
        self.report = report
        self.entries: list[ReplayEntry] = []

    def step(self, step: int, drawn: Sequence[tuple[RecordedRollout, Use]], signal: Sequence[RecordedRollout]) -> None:
        """Check the draws of a step, then add its rollouts to the buffer."""
        version = step - 1
        self.entries = [e for e in self.entries if version - e.version <= self.config.max_age]
        weights = [
            e.magnitude**self.config.alpha * math.exp(-(version - e.version) / self.config.tau) for e in self.entries
        ]
        total = math.fsum(weights)
        by_id = {e.id: (e, w / total if total else 0.0) for e, w in zip(self.entries, weights, strict=True)}
        for item, use in drawn:
            place = f"step {step}, replay of rollout {item.row.id}"
            entry, probability = by_id.get(item.row.id, (None, 0.0))
            self.report.same(place, "in the buffer", True, entry is not None)
            self.report.number(place, "weight of replay", use.weight, probability, tolerance=1e-4)
            right = None if entry is None else entry.advantage
            self.report.number(place, "advantage of replay", use.advantage, right, tolerance=SINGLE, size=1.0)
        for item in signal:
            entry = ReplayEntry(
                item.row.id, item.record.policy_version or 0, _magnitude(item), item.record.advantage or 0.0
            )
            if entry.magnitude > 0:
                self.entries.append(entry)
        del self.entries[: max(len(self.entries) - self.config.capacity, 0)]


def _magnitude(item: RecordedRollout) -> float:
    tokens = item.tokens
    if tokens is not None and tokens.advantages is not None:
        values = [abs(a) for a, mask in zip(tokens.advantages, tokens.agent_mask, strict=True) if mask]
    else:
        pairs = zip(item.record.step_advantages, item.tokens_by_turn, strict=False)
        values = [abs(a) for a, n in pairs for _ in range(n)]
    return fmean(values) if values else 0.0

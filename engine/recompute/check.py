"""Check a whole record, one step after another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...configs import metric_names as metric
from ...configs.schema import RunConfig
from ..runs.read.reader import RunReader
from ..runs.types import Use
from .advantages import AdvantageCheck
from .items import RecordedRollout, steps_of
from .ledger import Report
from .loss import Loss
from .metrics import StepMetrics
from .replay import Replay
from .rewards import Rewards


def recompute(reader: RunReader, config: RunConfig) -> Report:
    """Recompute every number of a training run. config: the run's own configuration.

    Only training rollouts are checked, not those of requests or evaluations.
    """
    in_force = [(e.step, e.data) for e in reader.events(kinds=["rewards"], limit=100_000)]
    return recompute_steps(steps_of(reader), metrics_of(reader), config, in_force)


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


def metrics_of(reader: RunReader) -> dict[int, dict[str, float]]:
    """Return all metrics by step and name."""
    found: dict[int, dict[str, float]] = {}
    for name in reader.metrics.names():
        for step, value in reader.metrics.points(name):
            if value is not None:
                found.setdefault(step, {})[name] = value
    return found

"""Runs the detectors while a run goes, and reports each finding once.

The trainer calls `observe` after each step and records what comes back as alerts; `detectors.py` says what is looked
for. No torch here.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..configs.sections.rewards import DiagnosisConfig
from ..envs.trajectory import Trajectory
from .breakdown import RewardBreakdown
from .detectors import DETECTORS, Batch, Detector, Finding, RolloutSummary, rollout_of
from .metrics import flat

__all__ = ["Batch", "Diagnosis", "Finding", "RolloutSummary", "batch_of", "rollout_of"]

log = logging.getLogger(__name__)


class Diagnosis:
    """The detectors over the last `window` steps. A finding is reported at most once in a window, also where
    it comes and goes."""

    def __init__(self, config: DiagnosisConfig | None = None, detectors: Mapping[str, Detector] | None = None) -> None:
        self.config = config or DiagnosisConfig()
        self.detectors = dict(DETECTORS if detectors is None else detectors)
        self.batches: deque[Batch] = deque(maxlen=self.config.window)
        self._reported: dict[tuple[str, str], int] = {}

    def observe(self, batch: Batch) -> list[Finding]:
        """Take a step in; what is newly wrong. A detector that fails is logged and costs nothing else."""
        self.batches.append(batch)
        found: list[Finding] = []
        for name, detector in self.detectors.items():
            try:
                found += detector(tuple(self.batches), self.config)
            except Exception:
                log.exception("detector %s failed at step %s", name, batch.step)
        new = []
        for finding in found:
            key = (finding.detector, finding.subject)
            if key not in self._reported or batch.step - self._reported[key] >= self.config.window:
                self._reported[key] = batch.step
                new.append(finding)
        return new


def batch_of(
    step: int,
    trajectories: Sequence[Trajectory],
    breakdowns: Sequence[RewardBreakdown],
    metrics: Mapping[str, Any],
    tokens: Sequence[int] | None = None,
    apart: Collection[str] = (),
) -> Batch:
    """A training step as detectors see it. tokens: agent tokens of each trajectory, where they are known. apart: see
    `RolloutSummary`."""
    lengths = tokens if tokens is not None else [0] * len(trajectories)
    rollouts = [rollout_of(t, b, int(n), apart) for t, b, n in zip(trajectories, breakdowns, lengths, strict=True)]
    return Batch(step, rollouts, flat(metrics))

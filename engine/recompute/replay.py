"""Check selective sample replay: the buffer's content at each step, and the probability of each draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from ...configs.sections.training import ReplayConfig
from ..runs.types import Use
from .items import RecordedRollout
from .ledger import SINGLE, Report


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

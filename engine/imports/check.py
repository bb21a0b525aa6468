"""The detectors of `rewards` over a whole record, of ours or of another framework: what is wrong, with its evidence.

Detectors look at a window of steps; here the window moves over all steps, and each finding is kept where it was
strongest. Only rows are read, so this costs little at any size; what the record does not know is not judged.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...configs.sections.rewards import DiagnosisConfig
from ...rewards.detectors import DETECTORS, SAME, Batch, Finding, RolloutSummary
from ..runs.query import Query
from ..runs.reader import RunReader
from ..runs.types import TrajectoryRow
from .convert import TEXT

PAGE = 1000
WITHOUT_REWARDS = ("action_collapse", "length_collapse")
"""Detectors that ask for no reward."""
NEEDS_WEIGHTS = ("advantage_share",)
"""Detectors that ask what each component counts in the reward: rows do not hold that."""
FLAT_SHARE = 0.5
"""Share of groups without signal that is reported: plain GRPO on a fitting task has fewer."""
TROUBLE_SHARE = 0.1
"""Share of rollouts with an unreadable call, or with an error, that is reported."""


@dataclass(frozen=True)
class Found:
    """A finding and the step at which it was strongest; `count` says at how many steps it was seen."""

    finding: Finding
    step: int | None
    count: int


def findings(reader: RunReader, limits: DiagnosisConfig | None = None) -> list[Found]:
    """What the detectors find, the gravest first."""
    limits = limits or DiagnosisConfig()
    bad = {row.n for row in _pages(reader, Query(filter="nan"))}
    rewarded = bool(bad) or any(row.reward is not None for row in reader.rollouts.page(_BEST, limit=1))
    names = [n for n in DETECTORS if n not in NEEDS_WEIGHTS and (rewarded or n in WITHOUT_REWARDS)]
    kept: dict[tuple[str, str], Found] = {}
    window: deque[Batch] = deque(maxlen=limits.window)
    signal = _Signal()
    for step, batch in _batches(reader, bad, rewarded):
        window.append(batch)
        if rewarded:
            signal.see(batch)
        for name in names:
            for finding in DETECTORS[name](tuple(window), limits):
                key = (finding.detector, finding.subject)
                before = kept.get(key)
                if before is None or abs(finding.value) > abs(before.finding.value):
                    kept[key] = Found(finding, step, 1 if before is None else before.count + 1)
                else:
                    kept[key] = replace(before, count=before.count + 1)
    order = {"failure": 0, "warning": 1, "hint": 2, "good": 3}
    found = [*kept.values(), *signal.found(limits), *_troubles(reader, limits)]
    return sorted(found, key=lambda f: (order[f.finding.grade], f.step or 0))


_BEST = Query(sort="reward", descending=True)


class _Signal:
    """Groups whose rollouts all have the same reward: their advantages are 0, so nothing is learned from them."""

    def __init__(self) -> None:
        self.groups = 0
        self.flat = 0
        self.evidence: list[str] = []

    def see(self, batch: Batch) -> None:
        """The groups of one step."""
        groups: dict[str, list[RolloutSummary]] = defaultdict(list)
        for rollout in batch.rollouts:
            if math.isfinite(rollout.total):
                groups[rollout.group].append(rollout)
        for members in groups.values():
            if len(members) > 1:
                self.groups += 1
                totals = [r.total for r in members]
                if max(totals) - min(totals) < SAME:
                    self.flat += 1
                    self.evidence += [r.id for r in members[:1]]

    def found(self, limits: DiagnosisConfig) -> Iterator[Found]:
        """One finding where they are many."""
        share = self.flat / self.groups if self.groups else 0.0
        if share > FLAT_SHARE:
            message = (
                f"{self.flat:,} of {self.groups:,} groups have one reward for all their rollouts and teach nothing."
            )
            ids = tuple(self.evidence[: limits.evidence])
            yield Found(Finding("no_signal", message, share, FLAT_SHARE, ids), None, 1)


def _troubles(reader: RunReader, limits: DiagnosisConfig) -> Iterator[Found]:
    """Rollouts with calls that cannot be read, or with errors, where they are many."""
    total = reader.rollouts.total()
    for name, filter_, what in (
        (
            "unreadable_calls",
            "unparsed",
            "hold a call that cannot be read, so the tool was never run",
        ),
        (
            "errors",
            "error",
            "ended in an error or met one",
        ),
    ):
        hit = int(reader.rollouts.count(Query(filter=filter_)))
        if total and hit / total > TROUBLE_SHARE:
            ids = tuple(r.id for r in reader.rollouts.page(Query(filter=filter_), limit=limits.evidence))
            message = f"{hit:,} of {total:,} rollouts {what}."
            yield Found(Finding(name, message, hit / total, TROUBLE_SHARE, ids), None, 1)


def _batches(reader: RunReader, bad: set[int], rewarded: bool) -> Iterator[tuple[int | None, Batch]]:
    """Batches in order of steps; rollouts of no step are one batch. A rollout whose reward, or whose turns, are unknown
    is not judged."""
    step: int | None = None
    held: list[RolloutSummary] = []
    for row in _pages(reader, Query(sort="step")):
        if held and row.step != step:
            yield step, Batch(step or 0, held)
            held = []
        step = row.step
        if row.turns is not None and (not rewarded or row.reward is not None or row.n in bad):
            held.append(_rollout(row, row.n in bad))
    if held:
        yield step, Batch(step or 0, held)


def _pages(reader: RunReader, query: Query) -> Iterator[TrajectoryRow]:
    offset = 0
    while rows := reader.rollouts.page(query, offset=offset, limit=PAGE):
        yield from rows
        offset += len(rows)


def _rollout(row: TrajectoryRow, is_nan: bool) -> RolloutSummary:
    """A row as detectors see it. Its components stand for what rises; words between calls are no action."""
    total = math.nan if is_nan or row.reward is None else row.reward
    prefix = "component."
    parts = {k.removeprefix(prefix): float(v) for k, v in row.extra.items() if k.startswith(prefix) and v is not None}
    actions = tuple(a for a in row.actions if a != TEXT)
    contributions = parts or {"reward": total}
    return RolloutSummary(
        row.id, row.group, total, contributions, row.correct, actions, row.tokens or 0, turns=row.turns
    )

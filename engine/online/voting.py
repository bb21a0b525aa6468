"""Pseudo-labels by voting, and the confidence gate.

A candidate does not vote on its own label. Otherwise a group in which all candidates disagree would reward every one.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...configs.sections.online import OnlineConfig
from ..runs.learning import GateCode, NeighbourVote

LearningRateKind = Literal["lr_correction", "lr_adaptive"]


def canonical(answer: str | None) -> str | None:
    """Normalise case and white space. Returns None for an empty answer."""
    text = " ".join((answer or "").split()).casefold()
    return text or None


@dataclass(frozen=True)
class Vote:
    """The result of a vote over k candidates.

    answer: the ensemble's answer, None if no candidate answered. confidence: its share of the total weight of all
    candidates and neighbours, including those without an answer. labels: for each candidate, the answer of the others,
    None if they tie or have none. correct: whether each candidate agrees with its label, None without a label. flipped:
    the first candidate differs from the ensemble. shares: the weight of each canonical answer.
    """

    answer: str | None
    confidence: float
    labels: tuple[str | None, ...]
    correct: tuple[bool | None, ...]
    flipped: bool
    shares: dict[str, float]


def vote(answers: Sequence[str | None], neighbours: Sequence[NeighbourVote] = ()) -> Vote:
    """Vote over the candidates' answers. Each candidate has weight 1.

    The first answer wins a tie for the ensemble's answer, because a caller waits for it. A label needs a unique winner
    among the others, because the policy learns from it.
    """
    keys = [canonical(a) for a in answers]
    tally: dict[str, float] = defaultdict(float)
    spelling: dict[str, str] = {}
    total = 0.0
    for answer, weight in [*((a, 1.0) for a in answers), *((n.answer, n.weight) for n in neighbours)]:
        total += weight
        if answer is not None and (key := canonical(answer)) is not None:
            tally[key] += weight
            spelling.setdefault(key, answer.strip())
    winner = max(tally, key=lambda k: tally[k], default=None)  # max keeps the first of equals
    labels = tuple(_label(tally, key) for key in keys)
    return Vote(
        answer=None if winner is None else spelling[winner],
        confidence=0.0 if winner is None or total <= 0 else tally[winner] / total,
        labels=tuple(None if label is None else spelling[label] for label in labels),
        correct=tuple(None if label is None else key == label for key, label in zip(keys, labels, strict=True)),
        flipped=bool(keys) and keys[0] != winner,
        shares=dict(sorted(((k, v / total) for k, v in tally.items() if total > 0), key=lambda kv: -kv[1])),
    )


def _label(tally: dict[str, float], own: str | None) -> str | None:
    """Return the unique winner among the others' answers, if any."""
    others = {key: votes - 1.0 if key == own else votes for key, votes in tally.items()}
    best, second, *_ = *heapq.nlargest(2, others.values()), 0.0, 0.0
    return max(others, key=lambda k: others[k]) if best > second + 1e-9 else None


@dataclass(frozen=True)
class Gate:
    """Whether the policy may learn from an experience, and the reason if not."""

    code: GateCode
    reason: str = ""

    @property
    def open(self) -> bool:
        return self.code == GateCode.OPEN


def gate(outcome: Vote, min_confidence: float) -> Gate:
    """Open the gate if the ensemble is confident enough and at least one candidate has a label.

    A unanimous group passes. Its candidates do not differ from each other, but they do from the running baseline.
    Without such groups, requests that the policy has mastered drift while it learns others.
    """
    if outcome.answer is None:
        return Gate(GateCode.NO_ANSWER, "no candidate answered")
    if outcome.confidence < min_confidence:
        return Gate(GateCode.LOW_CONFIDENCE, f"confidence {outcome.confidence:.2f} is below {min_confidence:.2f}")
    if all(c is None for c in outcome.correct):
        return Gate(GateCode.NO_LABEL, "the others tie for every candidate: no label")
    return Gate(GateCode.OPEN)


def learning_rate(outcome: Vote, config: OnlineConfig) -> tuple[float, LearningRateKind]:
    """Return the learning rate: `lr_correction` if the vote overturned the initial answer, else `lr_adaptive`, which
    falls linearly from `lr_adaptive_max` at the gate's threshold to `lr_adaptive_min` at full confidence.
    """
    if outcome.flipped:
        return config.lr_correction, "lr_correction"
    span = 1.0 - config.min_confidence
    surplus = min(max((outcome.confidence - config.min_confidence) / span, 0.0), 1.0) if span > 0 else 1.0
    return config.lr_adaptive_max * (1.0 - surplus) + config.lr_adaptive_min * surplus, "lr_adaptive"

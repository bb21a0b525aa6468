"""Pseudo-labels by voting, where a candidate has no vote in its own label, and the confidence gate.

If a candidate voted on its own label, a group in which everyone disagrees would still reward everyone; without its
vote the label is what the *others* think.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ..runs.learning import GateCode


def canonical(answer: str | None) -> str | None:
    """Answers that differ only in case and white space are one answer; an empty one is none."""
    text = " ".join((answer or "").split()).casefold()
    return text or None


@dataclass(frozen=True)
class Neighbour:
    """An earlier experience that votes: its ensembled answer, and the weight of that vote."""

    answer: str
    weight: float
    id: str = ""


@dataclass(frozen=True)
class Vote:
    """The outcome of a vote over k candidates.

    `answer`: the ensemble's, None when nobody answered. `confidence`: its share of all candidates' and neighbours'
    weight, those without an answer included. `labels`: for each candidate the answer of the others, None where they
    tie or have none. `correct`: whether the candidate agrees with its label (None without one). `flipped`: the first
    candidate answered otherwise than the ensemble. `shares`: weight of each canonical answer, most first.
    """

    answer: str | None
    confidence: float
    labels: tuple[str | None, ...]
    correct: tuple[bool | None, ...]
    flipped: bool
    unanimous: bool
    shares: dict[str, float]


def vote(answers: Sequence[str | None], neighbours: Sequence[Neighbour] = ()) -> Vote:
    """Vote over the candidates' answers, each of which counts 1.

    An equal share goes to the answer that came first, for the ensemble's answer: somebody waits for one. A label is
    given only where the others have a unique winner: it is learnt from.
    """
    keys = [canonical(a) for a in answers]
    tally: dict[str, float] = defaultdict(float)
    spelling: dict[str, str] = {}
    for key, answer in zip(keys, answers, strict=True):
        if key is not None and answer is not None:
            tally[key] += 1.0
            spelling.setdefault(key, answer.strip())
    total = float(len(keys))
    for neighbour in neighbours:
        key = canonical(neighbour.answer)
        if key is not None:
            tally[key] += neighbour.weight
            spelling.setdefault(key, neighbour.answer.strip())
            total += neighbour.weight
    winner = max(tally, key=lambda k: tally[k], default=None)  # max keeps the first of equals
    labels = tuple(_label(tally, key) for key in keys)
    return Vote(
        answer=None if winner is None else spelling[winner],
        confidence=0.0 if winner is None or total <= 0 else tally[winner] / total,
        labels=tuple(None if label is None else spelling[label] for label in labels),
        correct=tuple(None if label is None else key == label for key, label in zip(keys, labels, strict=True)),
        flipped=bool(keys) and keys[0] != winner,
        unanimous=winner is not None and all(k == winner for k in keys),
        shares=dict(sorted(((k, v / total) for k, v in tally.items() if total > 0), key=lambda kv: -kv[1])),
    )


def _label(tally: dict[str, float], own: str | None) -> str | None:
    """The winner without the vote of one candidate; None when nobody else answered or there is a tie."""
    best, label, tied = 0.0, None, False
    for key, votes in tally.items():
        others = votes - 1.0 if key == own else votes
        if others > best + 1e-9:
            best, label, tied = others, key, False
        elif label is not None and abs(others - best) <= 1e-9:
            tied = True
    return None if tied else label


@dataclass(frozen=True)
class Gate:
    """Whether an experience may be learnt from (`code`), and why not in words."""

    code: GateCode
    reason: str = ""

    @property
    def open(self) -> bool:
        """Whether the experience may be learnt from."""
        return self.code == GateCode.OPEN


def gate(outcome: Vote, min_confidence: float, unanimous: bool = False) -> Gate:
    """Open when the ensemble is sure enough, and there is something to learn.

    unanimous: whether a group that agrees to the last candidate is learnt from as well. Within the group there is no
    difference to learn from; against a running baseline it says that this is worth keeping.
    """
    if outcome.answer is None:
        return Gate(GateCode.NO_ANSWER, "no candidate answered")
    if outcome.confidence < min_confidence:
        return Gate(GateCode.LOW_CONFIDENCE, f"confidence {outcome.confidence:.2f} is below {min_confidence:.2f}")
    if outcome.unanimous and not unanimous:
        return Gate(GateCode.UNANIMOUS, "all candidates agree: nothing to learn")
    if all(c is None for c in outcome.correct):
        return Gate(GateCode.NO_LABEL, "the others tie for every candidate: no label")
    return Gate(GateCode.OPEN)


def learning_rate(
    outcome: Vote, *, correction: float, adaptive_max: float, adaptive_min: float, min_confidence: float
) -> tuple[float, str]:
    """`lr_correction` when the initial answer was wrong by the vote, else `lr_adaptive`.

    `lr_adaptive` falls in a straight line from `adaptive_max` at the gate's threshold to `adaptive_min` at full
    confidence: the surer the ensemble, the less there is to learn from an answer that was right.
    """
    if outcome.flipped:
        return correction, "lr_correction"
    span = 1.0 - min_confidence
    surplus = min(max((outcome.confidence - min_confidence) / span, 0.0), 1.0) if span > 0 else 1.0
    return adaptive_max * (1.0 - surplus) + adaptive_min * surplus, "lr_adaptive"

"""Answers to requests, with all data needed for learning, the record and the reply."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...rollouts.rollout import Rollout
from ...runs.learning import GateCode, NeighbourVote
from ..voting import Gate, Vote, canonical
from .requests import Request
from .texts import Written

UNSCORED = "the reward functions failed: "
"""Begins the reason of a gate that is closed because the samples have no scores."""
OPEN_S = 60.0
"""After this time, a turn is recorded without its continuation."""


@dataclass(frozen=True)
class Answer:
    """The answer to one request, with all its data. `samples[0]` is the initial trajectory.

    shown: the index in `samples` of the caller's answer; None if only neighbours gave that answer. single: the caller
    gets the first sample, and samples for a vote are drawn later. extracted: the part of the answer that counts in
    votes. vote: the vote that gave the answer. label_vote: the vote that gives labels and gate; it may include later
    samples. seconds: from arrival to answer. correct: None if the right answer is unknown.
    """

    request: Request
    vote: Vote
    label_vote: Vote
    gate: Gate
    samples: list[Rollout]
    policy_version: int
    correct: bool | None
    seconds: float
    neighbours: tuple[NeighbourVote, ...] = ()
    embedding: np.ndarray | None = None
    error: str | None = None
    shown: int | None = None
    single: bool = False
    extracted: str | None = None
    written: tuple[Written, ...] = ()
    """The texts from the running batch, one per sample, for the first samples."""

    @property
    def text(self) -> str | None:
        if self.written:
            return self.written[0].text
        if self.shown is None:
            return self.vote.answer
        trajectory = self.samples[self.shown].trajectory
        return None if trajectory is None or trajectory.answer is None else trajectory.answer.strip()

    @property
    def trajectory_id(self) -> str:
        """The id of this answer's trajectory, else of the initial trajectory."""
        samples = [self.samples[self.shown]] if self.shown is not None else []
        return next((s.trajectory.id for s in (*samples, *self.samples[:1]) if s.trajectory is not None), "")


def answered(
    request: Request,
    outcome: Vote,
    gate: Gate,
    samples: list[Rollout],
    version: int,
    shown: int | None,
    extracted: str | None,
    **more: Any,
) -> Answer:
    """Return the answer to a request, complete at this moment. See `Answer` for the arguments."""
    errors = [s.trajectory.error for s in samples if s.trajectory is not None]
    return Answer(
        request,
        outcome,
        outcome,
        gate,
        samples,
        version,
        _correct(outcome, samples, shown),
        time.perf_counter() - request.arrived,
        error=next(filter(None, errors), None) if errors and all(errors) else None,
        shown=shown,
        extracted=extracted,
        **more,
    )


def _correct(outcome: Vote, samples: Sequence[Rollout], shown: int | None) -> bool | None:
    """Return whether the answer is right; None if the environment does not know."""
    known = [s.trajectory for s in samples if s.trajectory is not None and s.trajectory.correct is not None]
    if not known:
        return None
    trajectory = samples[shown].trajectory if shown is not None else None
    if trajectory is not None:
        return trajectory.correct
    winner = canonical(outcome.answer)
    return winner is not None and any(canonical(t.expected) == winner for t in known)


def labelled(
    answer: Answer, samples: Sequence[Rollout], correct: Sequence[bool | None], right: str | None = None
) -> Answer:
    """Return the answer with samples judged with certainty. right: the right answer, if known."""
    label_vote = replace(
        answer.label_vote,
        labels=tuple(None if c is None else right for c in correct),
        correct=tuple(correct),
        confidence=1.0,
        flipped=correct[0] is False,
    )
    return replace(answer, samples=list(samples), label_vote=label_vote, gate=Gate(GateCode.OPEN))


def answer_of(sample: Rollout) -> str | None:
    """Return the answer that the environment found in a sample."""
    return sample.trajectory.answer if sample.trajectory is not None else None


def answer_as_json(answer: Answer) -> dict[str, object]:
    """Return the answer, its confidence (null for a single text), and where it is in the record."""
    learning = {"extracted": answer.extracted}
    if not answer.gate.open:
        learning["not_learnt"] = answer.gate.reason
    return {
        **answer.request.fields,
        "answer": answer.text,
        "confidence": None if answer.single else round(answer.vote.confidence, 4),
        "trajectory_id": answer.trajectory_id,
        "request": answer.request.number,
        "policy_version": answer.policy_version,
        **({"error": answer.error} if answer.error else learning if answer.single else {}),
    }


class OpenTurns:
    """Holds turns that call tools until their conversation continues, so that they are recorded as a part of it. Only
    for the engine's thread.
    """

    def __init__(self) -> None:
        self._open: dict[int, tuple[float, Answer]] = {}

    @property
    def numbers(self) -> list[int]:
        return list(self._open)

    def hold(self, answer: Answer) -> bool:
        """Drop the turn that this answer continues. Returns whether the answer itself is now held."""
        conversation = answer.request.conversation
        if conversation is not None and conversation.previous is not None:
            self._open.pop(conversation.previous.request, None)
        if len(answer.written) != 1 or not answer.written[0].calls:
            return False
        self._open[answer.request.number] = (time.monotonic() + OPEN_S, answer)
        return True

    def due(self, *, all_: bool = False) -> list[Answer]:
        """Remove and return the turns that have waited long enough, or all of them."""
        now = time.monotonic()
        due = [number for number, (until, _) in self._open.items() if all_ or now > until]
        return [self._open.pop(number)[1] for number in due]

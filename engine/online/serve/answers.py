"""What the engine gives back for a request: the seam between answering and whoever asked (a pipe, HTTP, a test)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...rollouts.rollout import Rollout
from ..voting import Gate, Neighbour, Vote
from .requests import Request


@dataclass(frozen=True)
class Answer:
    """The answer to one request, with everything it came from. `samples[0]` is the initial trajectory.

    `shown`: the place in `samples` of the one whose answer the caller gets; None where only neighbours gave it.
    `single`: the caller gets the first sample; samples for a vote are drawn later. `extracted`: the part of the answer
    that counts in votes.

    `vote` gave the answer, `label_vote` gives the labels and the gate: the same vote, or that of more samples which
    were drawn after the answer. `seconds`: from arrival to answer. `correct`: None where the right answer is unknown.
    """

    request: Request
    vote: Vote
    label_vote: Vote
    gate: Gate
    samples: list[Rollout]
    policy_version: int
    correct: bool | None
    seconds: float
    neighbours: tuple[Neighbour, ...] = ()
    embedding: np.ndarray | None = None
    error: str | None = None
    shown: int | None = None
    single: bool = False
    extracted: str | None = None
    written: str | None = None
    """The text of a single answer with its blanks, where it was passed on while it was written."""

    @property
    def text(self) -> str | None:
        """The text that the caller gets."""
        if self.written is not None:
            return self.written
        if self.shown is None:
            return self.vote.answer
        trajectory = self.samples[self.shown].trajectory
        return None if trajectory is None or trajectory.answer is None else trajectory.answer.strip()

    @property
    def trajectory_id(self) -> str:
        """The trajectory that led to this answer, else the initial one."""
        shown = self.samples[self.shown].trajectory if self.shown is not None else None
        if shown is not None:
            return shown.id
        first = self.samples[0].trajectory if self.samples else None
        return first.id if first is not None else ""


def answer_as_json(answer: Answer) -> dict[str, Any]:
    """The answer, how sure the vote is (null where one text was written), and where it is in the record."""
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

"""Answers to requests, with all data that learning, the record and the caller's reply need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...rollouts.rollout import Rollout
from ..voting import Gate, Neighbour, Vote
from .requests import Request
from .texts import Written


@dataclass(frozen=True)
class Answer:
    """The answer to one request, with all its data. `samples[0]` is the initial trajectory.

    shown: the index in `samples` of the caller's answer; None when only neighbours gave it. single: the caller gets the
    first sample, and samples for a vote are drawn later. extracted: the part of the answer that counts in votes. vote:
    gave the answer. label_vote: gives the labels and the gate; it may include later samples. seconds: from arrival to
    answer. correct: None where the right answer is unknown.
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
    written: tuple[Written, ...] = ()
    """The texts of the running batch, one for each of the first samples."""

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
        """The trajectory of this answer, else the initial one."""
        shown = self.samples[self.shown].trajectory if self.shown is not None else None
        if shown is not None:
            return shown.id
        first = self.samples[0].trajectory if self.samples else None
        return first.id if first is not None else ""


def answer_as_json(answer: Answer) -> dict[str, Any]:
    """Return the answer, its confidence (null for a single text), and its place in the record."""
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

"""What the engine gives back for a request: the seam between answering and whoever asked (a pipe, HTTP, a test)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...rollouts.rollout import Rollout
from .requests import Request
from .voting import Gate, Neighbour, Vote, canonical


@dataclass(frozen=True)
class Answer:
    """The answer to one request, with everything it came from. `samples[0]` is the initial trajectory.

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

    @property
    def text(self) -> str | None:
        """The ensemble's answer."""
        return self.vote.answer

    @property
    def trajectory_id(self) -> str:
        """The trajectory that shows the way to this answer: the first candidate that gave it, else the initial one."""
        winner = canonical(self.text)
        for sample in self.samples:
            if sample.trajectory is not None and canonical(sample.trajectory.answer) == winner:
                return sample.trajectory.id
        first = self.samples[0].trajectory if self.samples else None
        return first.id if first is not None else ""


def answer_as_json(answer: Answer) -> dict[str, Any]:
    """The ensemble's answer, how sure it is, and where to look at how it came about."""
    return {
        **answer.request.fields,
        "answer": answer.text,
        "confidence": round(answer.vote.confidence, 4),
        "trajectory_id": answer.trajectory_id,
        "request": answer.request.number,
        "policy_version": answer.policy_version,
        **({"error": answer.error} if answer.error else {}),
    }

"""An answer as JSON, for a pipe or a caller."""

from __future__ import annotations

from typing import Any

from .inference_engine import Answer


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

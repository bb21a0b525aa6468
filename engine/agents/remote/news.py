"""What a pool says of its servers, as events of a run's record."""

from __future__ import annotations

from typing import Any, Literal

DETECTOR = "rollout_servers"


def event_of(good: bool) -> tuple[Literal["note", "alert"], dict[str, Any]]:
    """Kind and facts of the event that tells a sentence about a server."""
    facts = {"detector": DETECTOR, "subject": "", "value": 0.0, "threshold": 0.0, "trajectories": []}
    return ("note" if good else "alert"), {**facts, "grade": "good" if good else "warning"}

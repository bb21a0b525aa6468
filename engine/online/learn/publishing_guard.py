"""Judges validations of a version: whether it may answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Verdict:
    """Whether a version may answer; `message` is for a person, None when there is nothing new to say."""

    good: bool
    message: str | None = None


class PublishingGuard:
    """Compares each validation of the smoothed (EMA) model with the best one so far, on the same held-out tasks.

    A version is good from `max_drop` below the best on. `release` accepts the present level as the new measure.
    """

    def __init__(self, max_drop: float) -> None:
        self.max_drop = max_drop
        self.best: float | None = None
        self.held = False
        """Whether the last version that was judged was not good."""
        self.good_update = 0
        """The last update whose smoothed model was validated as good."""

    def judge(self, result: Mapping[str, Any]) -> Verdict:
        """Take in one validation (`ema`: success in [0, 1]; `update`)."""
        ema, update = float(result["ema"]), int(result["update"])
        was = self.held
        if self.best is None or ema >= self.best - self.max_drop - 1e-9:
            self.best = ema if self.best is None else max(self.best, ema)
            self.good_update = max(self.good_update, update)
            self.held = False
            return Verdict(True, f"Publishing goes on: the smoothed model is at {ema:.0%} success." if was else None)
        self.held = True
        return Verdict(
            False,
            f"The smoothed model of update {update} is at {ema:.0%} success, {self.best - ema:.0%} below the best "
            f"validated {self.best:.0%}: it does not answer, and learning goes back to update {self.good_update}.",
        )

    def release(self) -> bool:
        """Measure the best anew, by the user's word. False when nothing was held back."""
        was, self.held, self.best = self.held, False, None
        return was

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"best": self.best, "held": self.held, "good_update": self.good_update}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.best, self.held, self.good_update = state["best"], bool(state["held"]), int(state["good_update"])

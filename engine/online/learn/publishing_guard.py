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
    """Decides whether the smoothed (EMA) model of an update may answer.

    Its success may be at most `max_drop` below the best one so far, on the same held-out tasks. On unrelated texts, its
    log-likelihood may be at most the share `max_text_loss` below that of the start, and its KL from the start at most
    `max_text_kl` nats per token. What was not measured is not judged. `release` accepts the present level of success.
    """

    def __init__(self, max_drop: float, max_text_loss: float, max_text_kl: float) -> None:
        self.max_drop = max_drop
        self.max_text_loss = max_text_loss
        self.max_text_kl = max_text_kl
        self.best: float | None = None
        self.held = False
        """Whether the last version that was judged was not good."""
        self.good_update = 0
        """The last update whose smoothed model was validated as good."""

    def judge(self, result: Mapping[str, Any]) -> Verdict:
        """Take in one validation: `update`, `ema` (success in [0, 1]), and the fields of `TextGuard.measure`."""
        update, was = int(result["update"]), self.held
        reason = self._success_problem(result) or self._text_problem(result)
        if reason is None:
            if "ema" in result:
                ema = float(result["ema"])
                self.best = ema if self.best is None else max(self.best, ema)
            self.good_update = max(self.good_update, update)
            self.held = False
            level = f"the smoothed model is at {float(result['ema']):.0%} success" if "ema" in result else "it is good"
            return Verdict(True, f"Publishing goes on: {level}." if was else None)
        self.held = True
        return Verdict(
            False,
            f"The smoothed model of update {update} {reason}: it does not answer, and learning goes back to update "
            f"{self.good_update}.",
        )

    def _success_problem(self, result: Mapping[str, Any]) -> str | None:
        if "ema" not in result or self.best is None:
            return None
        ema = float(result["ema"])
        if ema >= self.best - self.max_drop - 1e-9:
            return None
        return f"is at {ema:.0%} success, {self.best - ema:.0%} below the best validated {self.best:.0%}"

    def _text_problem(self, result: Mapping[str, Any]) -> str | None:
        if "text_now" not in result:
            return None
        before, now, kl = (float(result[name]) for name in ("text_before", "text_now", "text_kl"))
        loss = (before - now) / abs(before)
        if not loss <= self.max_text_loss:  # also true for NaN
            return (
                f"gives unrelated texts {loss:.1%} less log-likelihood than at the start ({before:.3f}, now {now:.3f})"
            )
        if kl > self.max_text_kl:
            return f"is {kl:.3f} nats per token from the start on unrelated texts; the limit is {self.max_text_kl:g}"
        return None

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

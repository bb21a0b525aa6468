"""Stops publishing when validation says that the smoothed model has become worse, and finds the last good version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Verdict:
    """What a validation result changed: `hold`, `release`, or None; `message` is for a person."""

    action: str | None
    message: str = ""


class PublishingGuard:
    """Compares each validation of the EMA model with the best one so far.

    Publishing is held from `max_drop` below the best on, and released when the model is back within it, or by the
    user (`release`), who thereby accepts the present level as the new measure.
    """

    def __init__(self, max_drop: float) -> None:
        self.max_drop = max_drop
        self.best: float | None = None
        self.held = False
        self.reason = ""
        self.good_update = 0
        """The last update whose EMA model was validated as good."""

    def judge(self, result: Mapping[str, Any]) -> Verdict:
        """Take in one line of validation (`ema`: success in [0, 1]; `update`)."""
        ema, update = float(result["ema"]), int(result["update"])
        if self.best is None or ema >= self.best - self.max_drop + 1e-9:
            self.best = ema if self.best is None else max(self.best, ema)
            self.good_update = max(self.good_update, update)
            if not self.held:
                return Verdict(None)
            self.held = False
            return Verdict("release", f"Publishing goes on: the smoothed model is back at {ema:.0%} success.")
        if self.held:
            return Verdict(None)
        self.held = True
        self.reason = (
            f"the smoothed model is at {ema:.0%} success, {self.best - ema:.0%} below its best {self.best:.0%}"
        )
        return Verdict("hold", f"Publishing is held: {self.reason}. `resume` lets it go on.")

    def release(self) -> bool:
        """Let publishing go on, by the user's word; the best is measured anew. False when it was not held."""
        was, self.held, self.best, self.reason = self.held, False, None, ""
        return was

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"best": self.best, "held": self.held, "reason": self.reason, "good_update": self.good_update}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.best, self.held = state["best"], state["held"]
        self.reason, self.good_update = state["reason"], state["good_update"]


class JsonLines:
    """Follows a file of JSON lines that another process appends to; half-written lines wait for their end."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset

    def read(self) -> list[dict[str, Any]]:
        """The objects that were added since the last call."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        found = []
        for line in whole.splitlines():
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                found.append(value)
        return found

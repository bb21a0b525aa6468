"""The same call again."""

from __future__ import annotations

from ...envs.trajectory import Step
from ..breakdown import Penalty
from .base import Episode, PenaltyRule, call_text


class RepeatedCall(PenaltyRule):
    """The same tool with the same arguments as in an earlier step of the episode."""

    id = "repeated_call"
    amount = -0.05

    def check(self, episode: Episode, step: Step) -> Penalty | None:
        """Look for the step's canonical action among those before it."""
        if step.action is None:
            return None
        keys, here = episode.keys, _position(episode, step)
        key = keys[here]
        for earlier in range(here):
            if keys[earlier] == key:
                break
        else:
            return None
        first = episode.steps[earlier].index
        times = sum(keys[i] == key for i in range(here + 1))
        return self.penalty(
            step,
            saw={"first_step": first, "times": times},
            limit="each call once",
            why=f"{call_text(step)} was already called in step {first + 1}; this is time {times}.",
            right=f"Use what step {first + 1} answered, or change the arguments.",
        )


def _position(episode: Episode, step: Step) -> int:
    if step.index < len(episode.steps) and episode.steps[step.index] is step:
        return step.index
    return next(i for i, s in enumerate(episode.steps) if s is step)

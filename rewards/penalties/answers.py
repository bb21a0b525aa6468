"""Episodes that end without an answer."""

from __future__ import annotations

from ...envs.trajectory import Step
from ..breakdown import Penalty
from .base import Episode, PenaltyRule

_NOT_THE_AGENTS_FAULT = frozenset({"error", "timeout", ""})
"""Empty: the episode is not over."""
_HOW = {
    "max_turns": "all turns were used up",
    "max_tokens": "all tokens were used up",
    "turn_limit": "the last turn was cut at its limit",
}


class NoFinalAnswer(PenaltyRule):
    """The episode is over and no answer was given. It sits on the last step.

    Only where the environment declares a final tool, and not when the environment itself failed.
    """

    id = "no_final_answer"
    amount = -0.1

    def check(self, episode: Episode, step: Step) -> Penalty | None:
        """Only the last step can lack the answer."""
        trajectory = episode.trajectory
        if step is not episode.steps[-1] or trajectory.answer is not None:
            return None
        if trajectory.stop_reason == "answer" or trajectory.stop_reason in _NOT_THE_AGENTS_FAULT:
            return None
        final = next((t for t in episode.tools.values() if t.final), None)
        if final is None:
            return None
        how = _HOW.get(trajectory.stop_reason, f"it stopped with {trajectory.stop_reason}")
        return self.penalty(
            step,
            saw={"stop_reason": trajectory.stop_reason, "steps": len(episode.steps)},
            limit=f"one call of {final.name}",
            why=f"The episode ended without an answer: {how} after {len(episode.steps)} steps.",
            right=f"Call {final.signature} while there are turns and tokens left.",
        )

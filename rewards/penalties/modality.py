"""A tool used on an input that it does not work on."""

from __future__ import annotations

from ...envs.trajectory import Step
from ..breakdown import Penalty
from .base import Episode, PenaltyRule, call_text


class WrongModality(PenaltyRule):
    """`TRACK_OBJECT` on a still image: the tool declares the inputs it needs, and this is none of them."""

    id = "wrong_modality"
    amount = -0.2

    def check(self, episode: Episode, step: Step) -> Penalty | None:
        """Compare the tool's declared modalities with the step's."""
        tool = episode.tools.get(step.action or "")
        if tool is None or not tool.modality or step.context.modality in tool.modality:
            return None
        has, needs = step.context.modality, " or ".join(sorted(tool.modality))
        fitting = [t.signature for t in episode.tools.values() if not t.modality or has in t.modality]
        return self.penalty(
            step,
            saw={"tool": tool.name, "modality": has},
            limit=f"modality: {needs}",
            why=f"{call_text(step)}: {tool.name} works on {needs}, and the input here is {has}.",
            right=f"On {has}, call one of: {', '.join(fitting)}." if fitting else f"No tool here works on {has}.",
        )

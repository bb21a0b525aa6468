"""All rules over all steps of a trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...envs.tools import ToolSpec
from ...envs.trajectory import Step, Trajectory
from ..breakdown import Penalty
from .base import Episode, PenaltyRule
from .loading import PenaltyRuleError


class PenaltyChecker:
    """Applies rules to trajectories. Raises PenaltyRuleError, which names rule and place, when a rule fails."""

    def __init__(self, rules: Sequence[PenaltyRule]) -> None:
        self.rules = list(rules)
        self._tools: dict[int, tuple[tuple[ToolSpec, ...], dict[str, ToolSpec]]] = {}

    def check(self, trajectory: Trajectory, keys: Sequence[str] | None = None) -> list[tuple[Penalty, ...]]:
        """The penalties of each step, in the order of the rules. keys: the canonical action of each step, if known."""
        episode = Episode(trajectory, self._tools_of(trajectory), keys)
        return [
            tuple(p for rule in self.rules if (p := _checked(rule, episode, step)) is not None)
            for step in episode.steps
        ]

    def _tools_of(self, trajectory: Trajectory) -> dict[str, ToolSpec]:
        """Tools by name; trajectories of an environment share the tuple, so it is looked up by identity."""
        found = self._tools.get(id(trajectory.tools))
        if found is None or found[0] is not trajectory.tools:
            if len(self._tools) > 256:
                self._tools.clear()
            found = self._tools[id(trajectory.tools)] = (trajectory.tools, {t.name: t for t in trajectory.tools})
        return found[1]


def _checked(rule: PenaltyRule, episode: Episode, step: Step) -> Penalty | None:
    try:
        penalty: Any = rule.check(episode, step)
    except Exception as error:
        raise PenaltyRuleError(
            f"penalty rule {rule.id} failed at step {step.index} of trajectory {episode.trajectory.id}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if penalty is None:
        return None
    if not isinstance(penalty, Penalty) or not penalty.amount <= 0:
        raise PenaltyRuleError(f"penalty rule {rule.id} must return None or a Penalty with an amount <= 0")
    return penalty if penalty.step == step.index else replace(penalty, step=step.index)

"""The arithmetic of one trajectory's reward, per step and component: raw → normalised → × weight → contribution.

The record and the app show exactly these numbers, and a test adds them up. `AdvantageFormula` records how the reward
became an advantage. Viewers read this data, so there is no torch here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Penalty:
    """One penalty of one step, as data.

    rule: id of the rule. amount: its cost, <= 0, before the weight. saw: the values that the rule checked. limit: the
    bound that they violated. why, right: one sentence each for people, on the fault and on a correct call.
    """

    rule: str
    amount: float
    step: int
    saw: Mapping[str, object] = field(default_factory=dict)
    limit: str = ""
    why: str = ""
    right: str = ""


@dataclass(frozen=True)
class ComponentValue:
    """One component at one step: `contribution = weight * normalized`. Without normalisation, `normalized == raw`. None
    marks a number that the writer did not record."""

    raw: float | None
    normalized: float | None
    weight: float | None
    contribution: float | None


@dataclass(frozen=True)
class NormalizedBy:
    """The mean, standard deviation and mode (`normalization.py`) that normalised a component of one trajectory. In mode
    `group`, the statistics are over the sums of the group's rollouts."""

    mode: str
    mean: float
    std: float


@dataclass(frozen=True)
class StepReward:
    """All components at one step. `total` is the sum of their contributions (None: not recorded)."""

    step: int
    components: Mapping[str, ComponentValue]
    penalties: tuple[Penalty, ...] = ()
    total: float | None = 0.0


@dataclass(frozen=True)
class RewardBreakdown:
    """The whole reward of one trajectory. `total` is the sum over its steps (None: not recorded).

    normalized_by: the statistics of each normalised component.
    """

    trajectory_id: str
    steps: tuple[StepReward, ...]
    total: float | None
    normalized_by: Mapping[str, NormalizedBy] = field(default_factory=dict)

    @property
    def penalties(self) -> tuple[Penalty, ...]:
        return tuple(p for s in self.steps for p in s.penalties)

    @property
    def contributions(self) -> dict[str, float]:
        """The known contributions of each component, summed over the steps."""
        sums: dict[str, float] = {}
        for step in self.steps:
            for name, value in step.components.items():
                if value.contribution is not None:
                    sums[name] = sums.get(name, 0.0) + value.contribution
        return sums


GOAL = "goal"
"""Name of the term for the reward without shaping, if shaping is compared separately."""


@dataclass(frozen=True)
class AdvantageTerm:
    """One comparison: `weight * (value - mean) / (std + epsilon)`, or without the division if `std` is None.

    value: the rollout's own return. mean, std: of the `size` compared returns, including its own; std with Bessel's
    correction (n − 1). name: the component's name, or empty for the whole return.
    """

    value: float
    mean: float
    std: float | None
    size: int
    weight: float = 1.0
    name: str = ""

    def result(self, epsilon: float) -> float:
        centred = self.value - self.mean
        return self.weight * (centred if self.std is None else centred / (self.std + epsilon))


@dataclass(frozen=True)
class AdvantageFormula:
    """The computation of one rollout's advantage, with the original numbers.

    method: `group` (the return of the rollout), `turn` (the return from each turn on), `reward` (each turn's reward,
    without comparison) or another that training registers. scale: divide by the standard deviation of the `group` or
    the `batch`, or not at all (`none`). steps: the terms of each turn's advantage. A single entry applies to all turns.
    sentence: the method's description for people, in which `{size}` is the number of compared returns.
    """

    method: str
    scale: str
    epsilon: float
    steps: tuple[tuple[AdvantageTerm, ...], ...] = ()
    sentence: str = ""

    def terms(self, step: int) -> tuple[AdvantageTerm, ...]:
        if len(self.steps) == 1:
            return self.steps[0]
        return self.steps[step] if 0 <= step < len(self.steps) else ()

    def advantage(self, step: int) -> float | None:
        """Recompute the advantage of the turn at `step`. Returns None if it has no terms."""
        terms = self.terms(step)
        return sum(t.result(self.epsilon) for t in terms) if terms else None


def comparison(what: str, whom: str, scale: str) -> str:
    """Describe a comparison of a return (`what`) with others (`whom`), divided according to `scale`."""
    if scale == "none":
        return f"{what}, minus the mean of {whom}"
    if scale == "batch":
        return f"{what}, against the mean of {whom}; ÷ the std (n − 1) of the whole batch"
    return f"{what}, against mean and std (n − 1) of {whom}"

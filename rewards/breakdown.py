"""One trajectory's reward as arithmetic: per step and component raw → normalised → × weight → contribution.

The record and the app show exactly these numbers, and a test adds them up. No torch here: viewers read these too.
`AdvantageFormula` holds how the reward became an advantage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class Penalty:
    """One penalty of one step, as data.

    rule: id of the rule. amount: its cost, <= 0, before the weight. saw: the values that the rule checked. limit: the
    bound that they broke. why, right: one sentence each, for a person, on the fault and on a correct call.
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
    """One component at one step: `contribution = weight * normalized`. Components that are not normalised have
    `normalized == raw`. None where a writer did not record the number: unknown is neither 0 nor 1."""

    raw: float | None
    normalized: float | None
    weight: float | None
    contribution: float | None


@dataclass(frozen=True)
class NormalizedBy:
    """The mean and the standard deviation that a component of one trajectory was normalised by, and the mode
    (`normalization.py`). In mode `group` both are of the group's sums over rollouts."""

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

    def to_json(self) -> dict[str, object]:
        return asdict(self)


GOAL = "goal"
"""Name of the term of the reward without shaping, where shaping is compared on its own."""


@dataclass(frozen=True)
class AdvantageTerm:
    """One comparison: `weight * (value - mean) / (std + epsilon)`, or without the division if `std` is None.

    value: the rollout's own return. mean, std: of the `size` compared returns, itself included, std with Bessel's
    correction (n − 1). name: empty for the whole return, else the component's name.
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
    compared with nothing) or another that training registers. scale: the deviation is that of the `group`, of the
    `batch`, or `none` (not divided). steps: for each turn with an advantage of its own, the terms of its sum. A single
    entry holds for all turns. sentence: the method's description for people, in which `{size}` is the number of
    compared returns.
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
        """Compute the advantage of the turn at `step` again; None without terms."""
        terms = self.terms(step)
        return sum(t.result(self.epsilon) for t in terms) if terms else None

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def comparison(what: str, whom: str, scale: str) -> str:
    """Describe a return (`what`) that was compared with others (`whom`) and divided according to `scale`."""
    if scale == "none":
        return f"{what}, minus the mean of {whom}"
    if scale == "batch":
        return f"{what}, against the mean of {whom}; ÷ the std (n − 1) of the whole batch"
    return f"{what}, against mean and std (n − 1) of {whom}"

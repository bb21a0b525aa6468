"""Compute advantages from rewards, in plain Python. This is the only implementation.

Training computes advantages here, `grpo-tui check --recompute` recomputes them from a record, and the screens use the
same constants and deviations.

A method compares values Q[i, t] (`AdvantageMethod.returns`). The advantage of turn t of rollout i is

    A[i, t] = (Q[i, t] − mean_G Q[·, t]) / (σ + EPSILON)

with the mean over the rollouts of the same group. σ is the standard deviation over the same group and turn, or over the
whole batch, or there is no division (`Scale`). σ has Bessel's correction (n − 1), as in TRL.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add
from typing import Literal, NamedTuple

from ...envs.trajectory import Trajectory
from ..breakdown import AdvantageFormula, AdvantageTerm, RewardBreakdown, comparison

EPSILON = 1e-4
"""Added to a standard deviation before dividing by it."""
ROUNDING = 1e-6
"""Centred returns below this come from equal returns that were summed in a different order."""

Scale = Literal["group", "batch", "none"]
Among = Literal["group", "peers"]
"""Compare shaping with the whole group, or with the rollouts of the group that had the same success."""


class ComponentPart(NamedTuple):
    """One reward component of a rollout: its weight, and its normalised values summed over the turns. shaping: whether
    it guides the policy instead of defining the goal."""

    weight: float
    value: float
    shaping: bool = False


@dataclass(frozen=True)
class Returns:
    """The rewards of one rollout of S turns.

    turns: reward of each turn [S]. unshaped: the same without shaping [S]. states: the state before each turn [S]
    (empty: unknown). parts: reward components by name (None: the reward has none). right: whether the rollout is known
    to be right. scored: False if its environment failed. Such a rollout counts in no mean and has no advantage. branch:
    for a branching rollout, the index of its parent in the group and the number of repeated turns.
    """

    turns: Sequence[float]
    unshaped: Sequence[float] = ()
    parts: Mapping[str, ComponentPart] | None = None
    right: bool = False
    scored: bool = True
    states: Sequence[str] = ()
    branch: tuple[int, int] | None = None

    @property
    def goal(self) -> Returns:
        return replace(self, turns=self.unshaped, parts=None)


def states_of(trajectory: Trajectory | None, turns: int) -> list[str]:
    """Return the text before each turn [turns]: the prompt, then observations. Empty if the trajectory has fewer."""
    known = [] if trajectory is None else [trajectory.prompt, *(s.observation for s in trajectory.steps)][:turns]
    return known if len(known) == turns else []


def parts_of(breakdown: RewardBreakdown, shaping: Collection[str]) -> dict[str, ComponentPart]:
    """Return each component with a non-zero weight. shaping: the names of the shaping components."""
    found: dict[str, ComponentPart] = {}
    for step in breakdown.steps:
        for name, value in step.components.items():
            if value.weight and value.normalized is not None:
                before = found[name].value if name in found else 0.0
                found[name] = ComponentPart(value.weight, before + value.normalized, name in shaping)
    return found


Group = Sequence[Returns]
Terms = tuple[AdvantageTerm, ...]
"""The comparisons of one value, whose results are added."""


class Spread(NamedTuple):
    """Mean, standard deviation (n − 1, 0 for fewer than two values) and number of values."""

    mean: float
    std: float
    size: int


def total(values: Sequence[float]) -> float:
    """Sum in the order in which PyTorch adds up to 16 float64 values: four interleaved partial sums.

    The fixed order keeps training results bitwise stable when this code changes.
    """
    blocks = len(values) // 4 * 4
    found = reduce(add, values[blocks:], 0.0)  # not `sum`, which compensates rounding since Python 3.12
    for lane in range(4 if blocks else 0):
        found += reduce(add, values[lane:blocks:4], 0.0)
    return found


def spread(values: Sequence[float | None]) -> Spread:
    """Compute mean, standard deviation and number of the values that are not None."""
    size = sum(v is not None for v in values)
    mean = total([v or 0.0 for v in values]) / max(size, 1)
    squares = [0.0 if v is None else (v - mean) * (v - mean) for v in values]
    std = math.sqrt(total(squares) / max(size - 1, 1))
    if math.isinf(std):  # squares of very large rewards overflow
        std = math.hypot(*(v - mean for v in values if v is not None)) / math.sqrt(max(size - 1, 1))
    return Spread(mean, std, size)


def compared(value: float, with_: Spread, std: float | None, weight: float = 1.0, name: str = "") -> AdvantageTerm:
    """Compare a value with its peers, including itself. Without other peers, the mean is the value itself."""
    mean = with_.mean if with_.size > 1 else value  # exact, despite rounding of the mean
    return AdvantageTerm(value, mean, std, with_.size, weight, name)


@dataclass(frozen=True)
class Columns:
    """The returns of one group by turn: column t has the return of each rollout, None if it did not reach turn t."""

    values: Sequence[Sequence[float | None]]

    @cached_property
    def spreads(self) -> Sequence[Spread]:
        return [spread(column) for column in self.values]

    def differ(self, least: float) -> bool:
        """Return whether some return differs from its peers and some standard deviation is at least `least`."""
        pairs = zip(self.values, self.spreads, strict=True)
        differs = any(v is not None and abs(v - s.mean) > ROUNDING for column, s in pairs for v in column)
        return differs and max((s.std for s in self.spreads), default=0.0) >= least


class AdvantageMethod(ABC):
    """A way to turn rewards into advantages. Subclasses define `name` and `returns`. The defaults suit most of them."""

    name: str = ""
    """The method's name in the record."""
    compares: str = ""
    """Description of `returns` in the formula for people. `compared_with` describes the peers."""
    compared_with: str = "the {size} rollouts of its group"
    shaping_apart: bool = False
    """Whether shaping is compared separately, so that it gives signal where the goal gives none."""
    on_last_token: bool = False
    """Whether the advantage of a turn goes only on its last token, not on all its agent tokens."""

    @abstractmethod
    def returns(self, rollout: Returns) -> Sequence[float]:
        """Return the values to compare: one per turn, or one for the whole rollout."""

    def sentence(self, formula: AdvantageFormula) -> str:
        """Describe a formula in one sentence for the record."""
        return comparison(self.compares or f"the returns of {self.name}", self.compared_with, formula.scale)

    def compare(self, groups: Sequence[Group], scale: Scale) -> list[list[AdvantageFormula | None]]:
        """Return the advantage formula of each rollout of each group, None for a rollout without an advantage."""
        if scale not in ("group", "batch", "none"):
            raise ValueError(f'unknown scale "{scale}": use group, batch or none')
        return [[self._formula(scale, steps) for steps in group] for group in self.terms(groups, scale)]

    def terms(self, groups: Sequence[Group], scale: Scale) -> list[list[list[Terms]]]:
        """Return the terms of each value of each rollout of each group. A rollout without an advantage has none."""
        columns = [self.columns(group) for group in groups]
        every = (
            spread([v for own in columns for column in own.values for v in column]).std if scale == "batch" else None
        )
        found: list[list[list[Terms]]] = []
        for group, own in zip(groups, columns, strict=True):
            of_group: list[list[Terms]] = [[] for _ in group]
            for column, peers in zip(own.values, own.spreads, strict=True):
                std = {"group": peers.std, "batch": every, "none": None}[scale]
                for steps, value in zip(of_group, column, strict=True):
                    if value is not None:
                        steps.append((self.term(value, peers, std),))
            found.append(of_group)
        return found

    def term(self, value: float, peers: Spread, std: float | None) -> AdvantageTerm:
        return compared(value, peers, std)

    def signal(self, groups: Sequence[Group], least: float = 0.0) -> list[bool]:
        """Return which groups carry signal: their returns differ, with a standard deviation of at least `least`."""
        return [self.columns(group).differ(least) for group in groups]

    def columns(self, group: Group) -> Columns:
        rows = [list(self.returns(rollout)) if rollout.scored else [] for rollout in group]
        turns = range(max(map(len, rows), default=0))
        return Columns([[row[t] if t < len(row) else None for row in rows] for t in turns])

    def _formula(self, scale: str, steps: Sequence[Terms]) -> AdvantageFormula | None:
        """Build the formula with its sentence. Returns None without steps."""
        if not steps:
            return None
        formula = AdvantageFormula(self.name, scale, EPSILON, tuple(steps))
        return replace(formula, sentence=self.sentence(formula))


def learnable(
    method: AdvantageMethod, groups: Sequence[Group], least: float, *, goal_only: bool, solved: bool
) -> list[bool]:
    """Return which groups carry signal.

    least: the minimum standard deviation of returns. goal_only: whether to ignore shaping. solved: whether separately
    compared shaping is enough signal if all rollouts of a group are right.
    """
    if not goal_only:
        return method.signal(groups, least)
    goals = [[rollout.goal for rollout in group] for group in groups]
    found = method.signal(goals, least)
    if solved and method.shaping_apart:
        differ, shaped = method.signal(goals), method.signal(groups, least)
        right = [all(rollout.right for rollout in group) for group in groups]
        found = [f or (r and not d and s) for f, r, d, s in zip(found, right, differ, shaped, strict=True)]
    return found


def component_names(groups: Sequence[Group]) -> list[str]:
    """Return the components of a batch in order of first appearance, or none if any rollout lacks components."""
    rollouts = [rollout for group in groups for rollout in group]
    if any(rollout.parts is None for rollout in rollouts):
        return []
    return list(dict.fromkeys(name for rollout in rollouts for name in rollout.parts or ()))


class GroupParts:
    """The components of one group, each with the mean and standard deviation of its peers."""

    def __init__(self, group: Group, among: Among) -> None:
        self.group = group
        self.among = among
        self._spreads: dict[tuple[str, bool | None], Spread] = {}

    def term(self, rollout: Returns, name: str) -> AdvantageTerm | None:
        """Compare a rollout's component with its peers. Returns None if the rollout lacks it."""
        part = (rollout.parts or {}).get(name)
        if part is None:
            return None
        right = rollout.right if self.among == "peers" and part.shaping else None
        if (name, right) not in self._spreads:
            peers = [r.parts if r.scored and right in (None, r.right) else None for r in self.group]
            parts = [(of_peer or {}).get(name) for of_peer in peers]
            self._spreads[name, right] = spread([None if p is None else p.value for p in parts])
        found = self._spreads[name, right]
        return compared(part.value, found, found.std, part.weight, name)

    def differ(self, names: Sequence[str], least: float) -> bool:
        """Return whether a component differs among peers, with a weighted standard deviation of at least `least`."""
        terms = [self.term(rollout, name) for name in names for rollout in self.group if rollout.scored]
        return any(abs(t.value - t.mean) > ROUNDING and t.weight * (t.std or 0.0) >= least for t in terms if t)

"""One trajectory's reward as arithmetic: per step and component raw → normalised → × weight → contribution.

The record and the app show exactly these numbers, and a test adds them up. No torch here: viewers read these too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Penalty:
    """One penalty of one step, as data.

    rule: id of the rule. amount: what it costs, <= 0, before the weight. saw: the values that the rule looked at.
    limit: the bound that they broke. why and right: one sentence each, for a person: what was wrong, what would
    have been right.
    """

    rule: str
    amount: float
    step: int
    saw: Mapping[str, Any] = field(default_factory=dict)
    limit: str = ""
    why: str = ""
    right: str = ""


@dataclass(frozen=True)
class ComponentValue:
    """One component at one step: `contribution = weight * normalized`. Components that are not normalised have
    `normalized == raw`."""

    raw: float
    normalized: float
    weight: float
    contribution: float


@dataclass(frozen=True)
class StepReward:
    """All components at one step; `total` is the sum of their contributions."""

    step: int
    components: Mapping[str, ComponentValue]
    penalties: tuple[Penalty, ...] = ()
    total: float = 0.0


@dataclass(frozen=True)
class RewardBreakdown:
    """The whole reward of one trajectory; `total` is the sum over its steps."""

    trajectory_id: str
    steps: tuple[StepReward, ...]
    total: float

    @property
    def penalties(self) -> tuple[Penalty, ...]:
        """All penalties in order of steps."""
        return tuple(p for s in self.steps for p in s.penalties)

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary, as stored in the run record."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RewardBreakdown:
        """The inverse of `to_json`."""
        return cls(
            trajectory_id=data["trajectory_id"],
            total=data["total"],
            steps=tuple(
                StepReward(
                    step=s["step"],
                    components={k: ComponentValue(**v) for k, v in s["components"].items()},
                    penalties=tuple(Penalty(**p) for p in s.get("penalties", ())),
                    total=s["total"],
                )
                for s in data["steps"]
            ),
        )

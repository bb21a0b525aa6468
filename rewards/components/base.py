"""The interface of a reward component."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ...configs.errors import GrpoTuiError
from ...envs.trajectory import Step, Trajectory
from ..breakdown import Penalty

Correctness = bool | float | None
"""Whether the final answer is right: True or False, a score on its own scale, or None if unknown."""


class RewardError(GrpoTuiError, ValueError):
    """Rewards cannot be computed as configured. The message names the fault and the fix."""


@dataclass(frozen=True)
class RewardInputs:
    """A batch to score: all N steps of B trajectories, concatenated.

    trajectories, correctness: B of each. steps: N. keys: the canonical action of each step, by trajectory. last: bool
    [N], True at the last step of each trajectory. rollout: int64 [N], the trajectory of each step. group: int64 [B],
    the group of each trajectory, numbered in order of first appearance. states: float32 [N, D], the state embedding of
    each step (None: no component needs them). penalties: the penalties of each step, by trajectory.
    """

    trajectories: Sequence[Trajectory]
    correctness: Sequence[Correctness]
    steps: Sequence[Step]
    keys: Sequence[Sequence[str]]
    last: Tensor
    rollout: Tensor
    group: Tensor
    states: Tensor | None
    penalties: Sequence[Sequence[tuple[Penalty, ...]]]


Values = tuple[Tensor, Tensor]
"""Raw rewards, float64 [N], and a mask of where they are defined, bool [N]."""


class RewardComponent(ABC):
    """One reward component. A subclass implements `compute`. The other methods are for components that learn.

    The constructor of a user's component receives the `options` of its entry in `rewards.extra_components`.
    """

    @abstractmethod
    def compute(self, batch: RewardInputs) -> Values | None:
        """Return the raw reward of each step, before normalisation and weight, or None if this batch has none."""

    def update(self) -> None:  # noqa: B027 (most components learn nothing)
        """Learn from the batch of the last `compute`."""

    def metrics(self) -> Mapping[str, float]:
        return {}

    def state_facts(self) -> dict[str, object] | None:
        """Return the state for a resumed run as JSON values, or None."""
        return None

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the state for a resumed run as tensors by flat names."""
        return {}

    def load_state(self, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:  # noqa: B027
        """Restore the state from the two methods above."""

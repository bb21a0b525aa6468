"""The dense reward of a batch, and every number behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from .breakdown import RewardBreakdown


@dataclass(frozen=True)
class RewardResult:
    """The rewards of a batch of B trajectories of at most S steps, of C components.

    total: float32 [B, S], 0 past a trajectory's end. mask: bool [B, S], where there is a step. raw, normalized and
    contributions: float64 [B, S, C], 0 where a component is not defined (`valid`, bool [B, S, C]): curiosity at the
    last step, coherence at the first, the task anywhere but at the last. `total` is the sum of `contributions` over C.
    `component_names` and `weights` go along C. `metrics` are for the record, with dictionaries such as the action
    distribution.
    """

    total: Tensor
    mask: Tensor
    component_names: tuple[str, ...]
    weights: tuple[float, ...]
    raw: Tensor
    normalized: Tensor
    contributions: Tensor
    valid: Tensor
    breakdowns: list[RewardBreakdown]
    metrics: Mapping[str, float | Mapping[str, float]]

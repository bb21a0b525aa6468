"""Scores that came with the steps (of reward functions, of others' rubrics) as components of the reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..envs.trajectory import Step


@dataclass(frozen=True)
class ScoredComponent:
    """One component over the N steps of a batch. raw: float64 [N]; defined: bool [N], where it gave a score."""

    raw: Tensor
    defined: Tensor
    weight: float


def scored_components(steps: Sequence[Step]) -> dict[str, ScoredComponent]:
    """Each named score of `steps` as a component, in the order in which the names first appear.

    A name without any score in the batch is left out.
    """
    found: dict[str, tuple[list[int], list[float], float]] = {}
    for n, step in enumerate(steps):
        for score in step.scores:
            places, values, _ = found.setdefault(score.name, ([], [], score.weight))
            if score.value is not None:
                places.append(n)
                values.append(score.value)
    components: dict[str, ScoredComponent] = {}
    for name, (places, values, weight) in found.items():
        if places:
            raw, defined = torch.zeros(len(steps), dtype=torch.float64), torch.zeros(len(steps), dtype=torch.bool)
            raw[places] = torch.tensor(values, dtype=torch.float64)
            defined[places] = True
            components[name] = ScoredComponent(raw, defined, weight)
    return components

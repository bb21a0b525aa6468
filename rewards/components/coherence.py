"""R_coherence: similarity to the previous step, with a penalty for repeated actions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..metrics import REPETITION, repeated
from .base import RewardComponent, RewardInputs, Values


class TrajectoryCoherenceAnalyzer:
    """Cosine similarity of consecutive step embeddings, and a cost for repeated actions.

    R_t = -1 if the action of step t (tool and arguments) is among those of the last `WINDOW` steps, else cos(s_t,
    s_{t-1}). A repeated step earns no similarity, because repetition maximises it. The first step of a trajectory has
    no predecessor: it gets 0 and is undefined for the statistics.
    """

    def compute(self, embeddings: Tensor, keys: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Return R_coherence of all steps, float64 [N], and a mask of where it is defined, bool [N].

        embeddings: [N, D], the steps of all trajectories, concatenated. keys: the canonical actions of each trajectory,
        N in all.
        """
        first = torch.tensor([i == 0 for row in keys for i in range(len(row))], dtype=torch.bool)
        again = torch.tensor([flag for row in keys for flag in repeated(row)], dtype=torch.bool)
        similarity = torch.zeros(first.numel(), dtype=torch.float64)
        if first.numel():
            states = embeddings.float()
            unit = states / torch.linalg.vector_norm(states, dim=-1).clamp(min=1e-12)[:, None]
            products = torch.bmm(unit[1:, None, :], unit[:-1, :, None])[:, 0, 0]  # does not copy the rows
            similarity[1:] = products.cpu().double().clamp(-1, 1)
        rewards = torch.where(again, REPETITION, similarity)
        return torch.where(first, 0.0, rewards), ~first


class CoherenceReward(RewardComponent):
    """See `TrajectoryCoherenceAnalyzer`."""

    def compute(self, batch: RewardInputs) -> Values | None:
        return None if batch.states is None else TrajectoryCoherenceAnalyzer().compute(batch.states, batch.keys)

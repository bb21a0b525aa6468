"""Shaping that leaves the best policy as it is (Ng, Harada and Russell, "Policy invariance under reward
transformations", 1999)."""

from __future__ import annotations

import torch
from torch import Tensor


def potential_differences(potential: Tensor, defined: Tensor, last: Tensor) -> Tensor:
    """F_t = Φ_{t+1} − Φ_t for each step, float64 [N]; Φ is 0 after the last step and where it is not defined.

    Undiscounted, as the returns of GRPO are. Over an episode they add up to −Φ of its first step, whatever the agent
    did in between. potential: float64 [N], the steps of all trajectories one after another; defined, last: bool [N].
    """
    here = torch.where(defined & potential.isfinite(), potential, 0.0)
    following = torch.cat([here[1:], here.new_zeros(1)])[: here.numel()]
    return torch.where(last, 0.0, following) - here

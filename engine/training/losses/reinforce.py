"""`reinforce`: −A · log π, without clipping or correction (Williams, 1992).

Use it for rollouts of the current policy: one optimiser step for each batch, without replay.
"""

from __future__ import annotations

from torch import Tensor

from . import LossInputs


def reinforce(inputs: LossInputs) -> Tensor:
    """Return the loss of each token, [B, T]. Its gradient is the plain policy gradient."""
    return -inputs.advantages * inputs.logprobs

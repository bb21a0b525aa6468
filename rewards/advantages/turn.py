"""`turn`: every agent token of turn t gets Q[i, t] − mean_G Q[·, t], Q[i, t] = Σ_{k ≥ t} r[i, k].

The mean is over the rollouts of the group that reached turn t. If only one did, its advantage is 0. Turn-level credit
as in MT-GRPO (arXiv 2505.11821).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from .base import AdvantageMethod, Returns


class TurnAdvantage(AdvantageMethod):
    """The return from a turn on, relative to the rollouts of the group that reached that turn."""

    name = "turn"
    compares = "the return from this step on"
    compared_with = "the {size} rollouts of the group that got this far"

    def returns(self, rollout: Returns) -> Sequence[float]:
        return list(accumulate(reversed(rollout.turns)))[::-1]

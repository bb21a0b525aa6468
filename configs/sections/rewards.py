"""The shaped reward: components, weights, normalisation and penalties."""

from __future__ import annotations

from pydantic import Field

from .base import Section


class RewardsConfig(Section):
    """Weights and settings of the reward components (`offline_rl.md`, Tasks 2 to 4)."""

    w_task: float = Field(default=1.0, ge=0)
    w_curiosity: float = Field(default=0.1, ge=0)
    w_coherence: float = Field(default=0.1, ge=0)
    w_penalty: float = Field(default=1.0, ge=0)

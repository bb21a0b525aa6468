"""Learning while serving (`online_updates.md`)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Section


class KLConfig(Section):
    """How the weight of the KL penalty follows the measured KL."""

    beta_update_mode: Literal["fixed", "auto"] = "auto"
    initial_beta: float = Field(default=0.02, ge=0)
    target_kl: float = Field(default=0.05, gt=0)
    """Nats per token."""
    kl_tolerance: float = Field(default=0.01, ge=0)
    factor: float = Field(default=1.2, gt=1)
    min_beta: float = Field(default=1e-4, ge=0)
    max_beta: float = Field(default=10.0, gt=0)
    window: int = Field(default=20, ge=1)
    """Updates over which `mean_kl_divergence` runs."""


class OnlineConfig(Section):
    """The inference engine and the update worker."""

    kl: KLConfig = KLConfig()

"""The error of rewards."""

from __future__ import annotations

from ..configs.errors import GrpoTuiError


class RewardError(GrpoTuiError, ValueError):
    """Rewards cannot be computed as configured. The message names the fault and the remedy."""

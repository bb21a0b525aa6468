"""What can go wrong with rewards as they are configured."""

from __future__ import annotations

from ..configs.errors import GrpoTuiError


class RewardError(GrpoTuiError, ValueError):
    """Rewards cannot be computed as configured; the message says what is missing and what would be right."""

"""What can go wrong when processes are started or stopped."""

from __future__ import annotations

from ...configs.errors import GrpoTuiError


class LaunchError(GrpoTuiError, RuntimeError):
    """A run cannot be started, resumed, stopped or deleted. The message is one sentence with what would be right."""

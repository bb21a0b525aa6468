"""The errors of starting and stopping processes."""

from __future__ import annotations

from ...configs.errors import GrpoTuiError


class LaunchError(GrpoTuiError, RuntimeError):
    """A run cannot be started, resumed, stopped or deleted. The message is one sentence with the remedy."""

"""Start, find, pause and stop the processes of a run. Never imports torch.

A run's processes run in their own sessions and survive the terminal. Later commands find them by pid and start time
(`engine/runs/control/status.py`).
"""

from ...configs.errors import GrpoTuiError


class LaunchError(GrpoTuiError, RuntimeError):
    """A run cannot be started, resumed, stopped or deleted. The message is one sentence with the fix."""

    exit_code = 2

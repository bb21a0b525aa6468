"""Start, find, pause and stop the processes of a run. Never imports torch.

A run's processes belong to a session of their own and live on when the terminal goes; whoever asks later finds them
by pid and start time (`engine/runs/status.py`).
"""

from .errors import LaunchError
from .find import find_run, list_runs
from .logs import tail_log
from .manage import delete_run, rename_run
from .settings import read_config
from .start import start_run
from .stop import stop_run

__all__ = [
    "LaunchError",
    "delete_run",
    "find_run",
    "list_runs",
    "read_config",
    "rename_run",
    "start_run",
    "stop_run",
    "tail_log",
]

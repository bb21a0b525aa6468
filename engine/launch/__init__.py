"""Start, find, pause and stop the processes of a run. Never imports torch.

A run's processes belong to a session of their own and live on when the terminal goes; whoever asks later finds them
by pid and start time (`engine/runs/status.py`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import LaunchError as LaunchError
    from .find import find_run as find_run
    from .find import list_runs as list_runs
    from .logs import tail_log as tail_log
    from .manage import delete_run as delete_run
    from .manage import rename_run as rename_run
    from .settings import read_config as read_config
    from .start import start_run as start_run
    from .stop import stop_run as stop_run

_HOMES = {
    "LaunchError": "errors",
    "delete_run": "manage",
    "find_run": "find",
    "list_runs": "find",
    "read_config": "settings",
    "rename_run": "manage",
    "start_run": "start",
    "stop_run": "stop",
    "tail_log": "logs",
}


def __getattr__(name: str) -> Any:
    """Load the file of a name when it is first used: listing runs needs nothing of starting them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)

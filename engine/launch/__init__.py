"""Start, find, pause and stop the processes of a run. Never imports torch.

A run's processes have a session of their own and survive the terminal. Later commands find them by pid and start time
(`engine/runs/control/status.py`).
"""

from typing import TYPE_CHECKING

from ...configs.lazy import loaded_when_used

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

__getattr__ = loaded_when_used(
    __name__,
    {
        "errors": ("LaunchError",),
        "find": ("find_run", "list_runs"),
        "logs": ("tail_log",),
        "manage": ("delete_run", "rename_run"),
        "settings": ("read_config",),
        "start": ("start_run",),
        "stop": ("stop_run",),
    },
)

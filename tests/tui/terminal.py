"""The pseudo-terminal of the end-to-end tests, from their folder: test folders are no packages of one another."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parents[1] / "e2e" / "terminal.py"
_spec = importlib.util.spec_from_file_location("e2e_terminal", _FILE)
assert _spec is not None and _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)

Terminal: Any = _module.Terminal


_OPEN = (
    "import sys; from pathlib import Path; from grpo_tui.tui.app.app import run_app; "
    "from grpo_tui.tui.app import destinations; run = Path(sys.argv[1]); "
    "run_app(run.parent, eval(sys.argv[2], {**vars(destinations), 'run': run}))"
)


def opened(run: Path, place: str, size: tuple[int, int] = (80, 24)) -> Any:
    """The app in a terminal at a destination, such as `Live(run)`."""
    command = ["env", f"XDG_STATE_HOME={run.parent / 'state'}", sys.executable, "-c", _OPEN, str(run), place]
    return Terminal(command, cwd=run.parent, env=os.environ, rows=size[1], columns=size[0])


def until(screen: Any, holds: Callable[[], bool], within: float = 30.0) -> None:
    """Wait until something holds of a terminal, such as that certain bytes arrived."""
    end = time.monotonic() + within
    while not holds():
        assert time.monotonic() < end, f"waited {within} s; the screen is\n{screen.text}"
        screen.settle(0.05, 0.2)

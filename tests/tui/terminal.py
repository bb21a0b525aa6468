"""The pseudo-terminal of the end-to-end tests, from their folder: test folders are no packages of one another."""

from __future__ import annotations

import importlib.util
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


def until(screen: Any, holds: Callable[[], bool], within: float = 30.0) -> None:
    """Wait until something holds of a terminal, such as that certain bytes arrived."""
    end = time.monotonic() + within
    while not holds():
        assert time.monotonic() < end, f"waited {within} s; the screen is\n{screen.text}"
        screen.settle(0.05, 0.2)

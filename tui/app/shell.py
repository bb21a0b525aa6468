"""The interface of the app for its screens. `GrpoApp` implements it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from .data import Reads
from .destinations import Destination
from .remember import Memory
from .theme import Palette


class Shell(Protocol):
    """The app's interface for its screens."""

    runs_dir: Path
    palette: Palette
    memory: Memory
    clock: Callable[[], float]
    """The clock for ages, in seconds since the epoch."""

    def open(self, destination: Destination, *, replace: bool = False) -> None:
        """Go there; with `replace`, in place of the present screen, else on top of it."""

    def go_back(self) -> None:
        """To the screen before; from the first screen of a run, to the list of runs."""

    def reads(self, run: Path | str) -> Reads: ...

    def forget_run(self, run: Path | str) -> None:
        """Close the readers of a run, as before it is deleted."""

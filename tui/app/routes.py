"""Which screen shows a destination. A screen's module is imported when somebody first goes there."""

from __future__ import annotations

import importlib
from typing import Any

from ...engine.runs.search.query import EVERYTHING
from .destinations import (
    Branching,
    Compare,
    Destination,
    Diff,
    Further,
    Groups,
    Help,
    Live,
    Playing,
    Runs,
    Stepper,
    Trajectories,
)
from .screens.base import AppScreen
from .shell import Shell

FURTHER: dict[str, tuple[str, str]] = {"Chat": ("chat", "ChatScreen")}
"""Further screens of a run, by their title in the command palette: file in `screens/` and class, which is made with the
run's `Reads`."""


def screen_for(destination: Destination, shell: Shell) -> AppScreen:
    """Return a new screen for `destination`. Raises RecordError if the run's record cannot be opened."""
    match destination:
        case Runs():
            return _made("runs", "RunsScreen", shell.runs_dir)
        case Live(run):
            return _made("live", "LiveScreen", shell.reads(run))
        case Trajectories(run, query):
            return _made("trajectories", "TrajectoriesScreen", shell.reads(run), query)
        case Groups(run, query, n):
            return _made("groups", "GroupsScreen", shell.reads(run), query, n)
        case Stepper(run, trajectory, query, step, find):
            return _made("stepper", "StepperScreen", shell.reads(run), trajectory, query, step, find)
        case Diff(run, n, other, others):
            return _made("diff", "DiffScreen", shell.reads(run), n, shell.reads(other or run), others)
        case Compare(runs):
            return _made("compare", "CompareScreen", runs)
        case Further(title, run):
            return _made(*FURTHER[title], shell.reads(run))
        case Playing(run, game):
            return _made("play", "PlayScreen", run, game)
        case Branching(run):
            from .widgets.value_panel import ValuePanel  # with the configuration's classes, for which no other waits

            return _made("trajectories", "TrajectoriesScreen", shell.reads(run), EVERYTHING, ValuePanel())
        case Help(about):
            return _made("help", "HelpScreen", about)


def _made(module: str, name: str, *arguments: Any) -> AppScreen:
    return getattr(importlib.import_module(f".screens.{module}", __package__), name)(*arguments)

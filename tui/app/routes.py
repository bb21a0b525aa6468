"""Which screen shows a destination. A screen's module is imported when somebody first goes there."""

from __future__ import annotations

import importlib

from .destinations import Compare, Destination, Diff, Further, Groups, Help, Live, Playing, Runs, Stepper, Trajectories
from .screens.base import AppScreen
from .shell import Shell

FURTHER: dict[str, tuple[str, str]] = {"Chat": ("chat", "ChatScreen")}
"""Further screens of a run, by their title in the command palette: file in `screens/` and class, which is made with the
run's `Reads`."""


def screen_for(destination: Destination, shell: Shell) -> AppScreen:
    """Return a new screen for `destination`. Raises RecordError if the run's record cannot be opened."""
    match destination:
        case Runs():
            from .screens.runs import RunsScreen

            return RunsScreen(shell.runs_dir)
        case Live(run):
            from .screens.live import LiveScreen

            return LiveScreen(shell.reads(run))
        case Trajectories(run, query):
            from .screens.trajectories import TrajectoriesScreen

            return TrajectoriesScreen(shell.reads(run), query)
        case Groups(run, query, n):
            from .screens.groups import GroupsScreen

            return GroupsScreen(shell.reads(run), query, n)
        case Stepper(run, trajectory, query, step, find):
            from .screens.stepper import StepperScreen

            return StepperScreen(shell.reads(run), trajectory, query, step, find)
        case Diff(run, n):
            from .screens.diff import DiffScreen

            return DiffScreen(shell.reads(run), n)
        case Compare(runs):
            from .screens.compare import CompareScreen

            return CompareScreen(runs)
        case Further(title, run):
            module, name = FURTHER[title]
            return getattr(importlib.import_module(f".screens.{module}", __package__), name)(shell.reads(run))
        case Playing(run, game):
            from .screens.play import PlayScreen

            return PlayScreen(run, game)
        case Help(about):
            from .screens.help import HelpScreen

            return HelpScreen(about)

"""Destinations in the app, as data. A screen opens one with `app.open(…)` and depends on no other screen."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ...engine.runs.columns import SORTS
from ...engine.runs.search.query import EVERYTHING, Query
from ...engine.runs.types import RunInfo

if TYPE_CHECKING:
    from ...engine.launch.play import Play
    from .data import Reads

FURTHER: dict[str, tuple[str, str]] = {
    "Chat": ("chat", "ChatScreen"),
    "Timeline": ("timeline", "TimelineScreen"),
}
"""More screens of a run, by their title in the command palette: the file in `screens/`, and the class, which takes the
run's `Reads`."""


@dataclass(frozen=True)
class Destination:
    """A place in the app. The screen takes its values in order, with `Reads` in place of a run's folder."""

    screen: ClassVar[tuple[str, str]]
    """File in `screens/`, and class. The file is imported at the first visit."""

    def values(self, reads: Callable[[Path], Reads]) -> Iterable[Any]:
        return (reads(value) if isinstance(value, Path) else value for value in vars(self).values())


@dataclass(frozen=True)
class OfRun(Destination):
    """A screen of a run, given by its folder."""

    run: Path


@dataclass(frozen=True)
class OfQuery(OfRun):
    """A screen of the trajectories of a run that match `query`."""

    query: Query = EVERYTHING


class Runs(Destination):
    """The list of runs."""

    screen = ("runs", "RunsScreen")


class Live(OfRun):
    """The dashboard of a run."""

    screen = ("live", "LiveScreen")


@dataclass(frozen=True)
class Further(OfRun):
    """Another screen of a run, by its title in `FURTHER`."""

    title: str

    @property
    def screen(self) -> tuple[str, str]:  # type: ignore[override]
        return FURTHER[self.title]

    def values(self, reads: Callable[[Path], Reads]) -> Iterable[Any]:
        return (reads(self.run),)


class Trajectories(OfQuery):
    """The list of trajectories."""

    screen = ("trajectories", "TrajectoriesScreen")


class Behavior(OfQuery):
    """The behaviour of the trajectories from step to step."""

    screen = ("behavior", "BehaviorScreen")


class Scatter(OfQuery):
    """Two values of the trajectories against each other."""

    screen = ("scatter", "ScatterScreen")


@dataclass(frozen=True)
class Groups(OfQuery):
    """The trajectories folded by group. The cursor starts at the group of trajectory `n`."""

    screen = ("groups", "GroupsScreen")
    n: int | None = None

    @classmethod
    def of_prompt(cls, run: Path, prompt_id: str, n: int) -> Groups:
        """Return the groups of one prompt over all steps, with the cursor at that of trajectory `n`."""
        from ...engine.runs.search.filters import term

        return cls(run, Query(term("prompt", prompt_id), sort="step"), n)


@dataclass(frozen=True)
class SideBySide(OfRun):
    """All rollouts of the group of trajectory `n`, side by side."""

    screen = ("side_by_side", "SideBySideScreen")
    n: int


@dataclass(frozen=True)
class Stepper(OfRun):
    """Trajectory `n` at `step` (from 0) or the first match of `find`. `query` selects the next one."""

    screen = ("stepper", "StepperScreen")
    n: int
    query: Query = EVERYTHING
    step: int = 0
    find: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diff(OfRun):
    """Trajectory `n` compared with another rollout of its group or prompt, or with rollouts `others` of run `other`."""

    screen = ("diff", "DiffScreen")
    n: int
    other: Path | None = None
    others: tuple[int, ...] = ()


@dataclass(frozen=True)
class Chatting(OfRun):
    """A chat with a policy whose server `run` the app has started. The server stops with the screen."""

    screen = ("chat", "ChatScreen")
    started: bool = True


class Branching(OfRun):
    """The continuations of a step, in the run that records them."""

    screen = ("trajectories", "branch_screen")


@dataclass(frozen=True)
class Playing(OfRun):
    """Tasks for a human player. `game` is the process that runs them."""

    screen = ("play", "PlayScreen")
    game: Play

    def values(self, reads: Callable[[Path], Reads]) -> Iterable[Any]:
        return self.run, self.game


@dataclass(frozen=True)
class Compare(Destination):
    """Several runs in one comparison."""

    screen = ("compare", "CompareScreen")
    runs: tuple[RunInfo, ...]


@dataclass(frozen=True)
class Help(Destination):
    """The keys of a screen, by its name in `bindings.py`."""

    screen = ("help", "HelpScreen")
    about: str


_NUMBER = re.compile(r"(\d{1,18})\s*(?:/\s*(\d{1,9}))?")
_STEP = re.compile(r"step[\s:=]*(\d{1,18})", re.IGNORECASE)


def typed_destination(text: str, reads: Reads, query: Query) -> Destination:
    """Return the destination for a typed text. Raises LookupError with a message for the user."""
    text = text.strip()
    run, matching = reads.path, Query(query.filter, query.search)
    query = query if query.sort in SORTS else matching  # groups sort by other columns
    screens = {
        "runs": Runs(),
        "live": Live(run),
        "dashboard": Live(run),
        "list": Trajectories(run),
        "trajectories": Trajectories(run),
        "groups": Groups(run, matching),
    }
    matches = [screen for name, screen in screens.items() if text and name.startswith(text.lower())]
    if matches:
        return matches[0]
    step = _STEP.fullmatch(text)
    if step is not None:
        return Trajectories(run, Query(filter=f"step={int(step[1])}"))
    number = _NUMBER.fullmatch(text)
    if number is None:
        return Stepper(run, reads.now.bodies.number(text), query)
    n = reads.now.bodies.number(int(number[1]))
    return Stepper(run, n, query, step=max(0, int(number[2] or 1) - 1))

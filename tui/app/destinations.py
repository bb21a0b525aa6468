"""Where the app can go, as data. A screen asks for a place with `app.open(…)`; no screen knows another.

Which screen shows a destination is said in `routes.py`; what screens may ask of the app, in `shell.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...engine.runs.search.query import EVERYTHING, Query
from ...engine.runs.types import RunInfo

if TYPE_CHECKING:
    from ...engine.launch.play import Play


@dataclass(frozen=True)
class Runs:
    """The list of runs."""


@dataclass(frozen=True)
class Live:
    """The dashboard of a run (its folder)."""

    run: Path


@dataclass(frozen=True)
class Trajectories:
    """The trajectories of a run, those that `query` leaves."""

    run: Path
    query: Query = EVERYTHING


@dataclass(frozen=True)
class Groups:
    """The trajectories folded into their groups; the cursor starts on the group of trajectory `n`."""

    run: Path
    query: Query = EVERYTHING
    n: int | None = None


@dataclass(frozen=True)
class Stepper:
    """One trajectory (its id or number) at `step`, counted from 0, or at the first place that holds one of `find`;
    "next" follows `query`."""

    run: Path
    trajectory: str | int
    query: Query = EVERYTHING
    step: int = 0
    find: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diff:
    """Trajectory `n` beside another rollout of its group or its prompt."""

    run: Path
    n: int


@dataclass(frozen=True)
class Compare:
    """Several runs over each other."""

    runs: tuple[RunInfo, ...]


@dataclass(frozen=True)
class Further:
    """A screen of a run that `routes.FURTHER` lists, by its title."""

    title: str
    run: Path


@dataclass(frozen=True)
class Help:
    """The keys of a screen, by its name in `bindings.py`."""

    about: str


@dataclass(frozen=True)
class Playing:
    """Tasks that a person plays; `game` is the process that plays them."""

    run: Path
    game: Play


Destination = Runs | Live | Trajectories | Groups | Stepper | Diff | Compare | Further | Help | Playing

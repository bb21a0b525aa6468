"""Destinations in the app, as data. A screen goes to one with `app.open(…)` and knows no other screen.

`routes.py` maps a destination to its screen.
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
    """The dashboard of a run, given by its folder."""

    run: Path


@dataclass(frozen=True)
class Trajectories:
    """The trajectories of a run that match `query`."""

    run: Path
    query: Query = EVERYTHING


@dataclass(frozen=True)
class Groups:
    """The trajectories folded by group. The cursor starts at the group of trajectory `n`."""

    run: Path
    query: Query = EVERYTHING
    n: int | None = None


@dataclass(frozen=True)
class Stepper:
    """One trajectory, by id or number, at `step` (from 0) or the first match of `find`. `query` gives the next one."""

    run: Path
    trajectory: str | int
    query: Query = EVERYTHING
    step: int = 0
    find: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diff:
    """Trajectory `n` compared with another rollout of its group or prompt, or with rollouts `others` of the run
    `other`."""

    run: Path
    n: int
    other: Path | None = None
    others: tuple[int, ...] = ()


@dataclass(frozen=True)
class Compare:
    """Several runs in one comparison."""

    runs: tuple[RunInfo, ...]


@dataclass(frozen=True)
class Further:
    """Another screen of a run, by its title in `routes.FURTHER`."""

    title: str
    run: Path


@dataclass(frozen=True)
class Help:
    """The keys of a screen, by its name in `bindings.py`."""

    about: str


@dataclass(frozen=True)
class Branching:
    """The continuations of a step, in the run that records them."""

    run: Path


@dataclass(frozen=True)
class Playing:
    """Tasks for a human player. `game` is the process that runs them."""

    run: Path
    game: Play


Destination = Runs | Live | Trajectories | Groups | Stepper | Diff | Compare | Further | Help | Playing | Branching

"""What the app asks of a source of rollouts. `RunReader` answers it from a run's record; another source may as well.

Numbers `n` of rollouts are dense from 1 in order of recording; offsets into a list count from 0. A source that cannot
read a part says so in `problems` and gives the rest. A filter, search or order that it does not understand is a
FilterError, a rollout that is not there a LookupError, one that cannot be read a RecordDamaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from .groups import GroupRow
from .histogram import Histogram
from .learning import Use
from .query import Query
from .series import Points
from .types import Event, RunInfo, StoredTokens, TokenArrays, TrajectoryRecord, TrajectoryRow
from .views import Count


class GroupSource(Protocol):
    """The groups that a query leaves, in its order."""

    def count(self) -> int:
        """How many groups there are."""
        ...

    def first(self, limit: int) -> list[GroupRow]:
        """The first ones, before they are counted."""
        ...

    def page(self, offset: int, limit: int) -> list[GroupRow]:
        """Groups `offset` … `offset + limit`."""
        ...

    def position(self, n: int) -> int | None:
        """The offset of the group that rollout `n` is of; None when it is not among these."""
        ...


class RolloutSource(Protocol):
    """Lists of rollouts: what a query leaves, as rows."""

    def total(self) -> int:
        """How many there are; also the number of the last."""
        ...

    def first(self, split: str) -> int | None:
        """The number of the first rollout of a split (`train`, `eval`)."""
        ...

    def count(self, query: Query = ...) -> Count:
        """How many match: exact, or a lower bound that says so."""
        ...

    def least(self, query: Query = ...) -> Count:
        """What is known of the count at once."""
        ...

    def page(self, query: Query = ..., *, offset: int = ..., limit: int = ...) -> list[TrajectoryRow]:
        """Rows `offset` … `offset + limit`."""
        ...

    def seek(self, n: int, direction: int, query: Query = ...) -> TrajectoryRow | None:
        """The row after (`+1`) or before (`-1`) rollout `n`; None at the end."""
        ...

    def position(self, n: int, query: Query = ...) -> int | None:
        """The offset of rollout `n`; None when it does not match, or this takes too long to tell."""
        ...

    def rows(self, numbers: Sequence[int]) -> list[TrajectoryRow]:
        """The rows with these numbers that are there."""
        ...

    def group(self, group: str) -> list[TrajectoryRow]:
        """The rollouts of a group."""
        ...

    def prompt(self, prompt_id: str, limit: int = ...) -> list[TrajectoryRow]:
        """The last rollouts of a prompt, oldest first."""
        ...

    def groups(self, query: Query = ...) -> GroupSource:
        """The groups with a rollout that matches."""
        ...

    def histogram(self, query: Query = ..., *, column: str = ..., bins: int = ...) -> Histogram:
        """The distribution of a column."""
        ...

    def filter_notes(self, filter: str) -> tuple[str, ...]:
        """Names in a filter that are not held here, each with the nearest that are."""
        ...

    def names(self, kind: str) -> list[str]:
        """Names of a kind that are held: `action`, `penalty`, `env`, `split` or `stop`."""
        ...


class BodySource(Protocol):
    """One rollout, whole, by its number or its id."""

    def number(self, id_or_n: str | int) -> int:
        """The number of a trajectory."""
        ...

    def trajectory(self, id_or_n: str | int) -> TrajectoryRecord:
        """What was said, done and rewarded."""
        ...

    def tokens(self, id_or_n: str | int) -> TokenArrays | StoredTokens | None:
        """Its tokens, where there are any."""
        ...

    def uses(self, id_or_n: str | int, record: TrajectoryRecord | None = ...) -> list[Use]:
        """What updates did with it, in order; `record` is it where it was read already."""
        ...

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """The texts of token ids."""
        ...


class MetricSource(Protocol):
    """Numbers by name and step; a source without any gives empty lists."""

    def names(self) -> list[str]:
        """The names of all metrics."""
        ...

    def points(
        self, name: str, *, after_step: int = ..., until_step: int | None = ..., max_points: int | None = ...
    ) -> Points:
        """`[(step, value)]`, or means of spans of steps when there are more than `max_points`."""
        ...

    def latest(self) -> dict[str, float]:
        """The last value of each."""
        ...

    def latest_points(self) -> dict[str, tuple[int, float]]:
        """The last value of each, with its step."""
        ...

    def step_times(self, max_points: int = ...) -> Points:
        """`[(step, seconds since the epoch)]` of some steps."""
        ...


class Source(Protocol):
    """A run, or anything else whose rollouts can be looked at."""

    @property
    def problems(self) -> list[str]:
        """What cannot be read, in sentences."""
        ...

    @property
    def rollouts(self) -> RolloutSource:
        """Lists of rollouts."""
        ...

    @property
    def bodies(self) -> BodySource:
        """Single rollouts."""
        ...

    @property
    def metrics(self) -> MetricSource:
        """Metrics as curves."""
        ...

    def info(self) -> RunInfo:
        """What it is and how it stands."""
        ...

    def pending(self, query: Query = ...) -> str:
        """What is not there to be read yet, in a few words; empty: all that a query sees is."""
        ...

    def events(self, kinds: Iterable[str] | None = ..., *, after_id: int = ..., limit: int = ...) -> list[Event]:
        """The last `limit` events after an id, oldest first."""
        ...

    def close(self) -> None:
        """Close the record."""

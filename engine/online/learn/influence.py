"""Limit how much a single request or source can influence the policy."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from statistics import median_low
from typing import Any

import numpy as np

WINDOW = 1000
"""Repetitions and shares are counted over this many updates."""
DECAY = 0.95
"""The weight of a value in a baseline, relative to the one after it."""
PRIOR = 4.0
"""In the baseline of one source, the mean of all sources counts as this many ratings."""


class Recent:
    """The last values of a stream, oldest first. They are its whole state."""

    def __init__(self, size: int = 256) -> None:
        self._recent: deque[Any] = deque(maxlen=size)

    def state_dict(self) -> list[Any]:
        return list(self._recent)

    def load_state_dict(self, state: Iterable[Any] | None) -> None:
        self._recent.clear()
        self._recent.extend(state or ())


class Influence(Recent):
    """Assigns each task a weight in (0, 1] based on the last `WINDOW` tasks.

    The n-th task about the same request has weight 1 / n², so all repetitions together count at most 1.65 times as much
    as one.

    If a source's share s of these tasks exceeds its cap, its tasks have weight cap / s. The cap is `share`, or an equal
    part if there are fewer than 1 / `share` sources, so that learning from a single caller is not slowed down. For
    questions that the policy's own vote labels, the sources are those of the last tasks. For feedback, they are the
    callers with recent requests. A source is `caller` or `caller/user`. Both are capped, so a caller gains nothing by
    inventing users. The run's own requests have no source and no cap.
    """

    def __init__(self, share: float, window: int = WINDOW) -> None:
        super().__init__(window)
        self.share = share

    def weigh(self, request: str, source: str, *, labelled: bool = False, peers: Sequence[int] = ()) -> float:
        """Count one more task and return its weight.

        labelled: the source gave the label. peers: the number of callers with recent requests, and the number of users
        of this caller; empty if unknown.
        """
        self._recent.append((request, source))
        weight = 1.0 / sum(known == request for known, _ in self._recent) ** 2 if request else 1.0
        tasks = Counter(name for _, known in self._recent for name in levels_of(known))
        rooms = [self._room(name, tasks, labelled, peers) for name in levels_of(source) if name]
        return weight * min(rooms, default=1.0)

    def _room(self, name: str, tasks: Counter[str], labelled: bool, peers: Sequence[int]) -> float:
        """Return the weight that the cap allows a source: 1 below the cap. tasks: the recent tasks of each source."""
        parent = name.rpartition("/")[0]  # the caller of a user, else empty
        sources = sum(known.rpartition("/")[0] == parent for known in tasks)
        if labelled:
            sources = max(sources, peers[bool(parent)] if len(peers) == 2 else round(1 / self.share))
        cap = max(self.share, 1 / sources)
        # A single task is not a majority, so the share is relative to at least a few tasks.
        total = tasks[parent] if parent else len(self._recent)
        return min(1.0, cap / (tasks[name] / max(total, round(5 / self.share))))


def levels_of(source: str) -> list[str]:
    """Return `[caller]` for `caller`, and `[caller, caller/user]` for `caller/user`."""
    caller, separator, _ = source.partition("/")
    return [caller, source] if separator else [caller]


class RobustBaseline(Recent):
    """Running median of task returns, each weighted by `DECAY` to the power of its age.

    A single outlier cannot move a median. With fewer than three earlier tasks, the baseline is the median over the
    task's own candidates.
    """

    def value(self, returns: list[float]) -> float:
        if len(self._recent) < 3:
            return median_low(returns)
        weights = DECAY ** np.arange(len(self._recent))[::-1]
        return float(np.quantile(self._recent, 0.5, weights=weights, method="inverted_cdf"))

    def add(self, mean: float) -> None:
        self._recent.append(mean)


class RatingBaseline(Recent):
    """Running mean of each source's ratings, each weighted by `DECAY` to the power of its age.

    Ratings are ±1, so a median would hide either all praise or all blame. A rating is compared with those of its own
    source, because praise from a strict source and blame from a mild one carry the most information. The mean of a
    source with few ratings is shrunk towards that of all sources, as if it had given `PRIOR` more ratings of that mean.
    """

    def value(self, source: str) -> float:
        overall = self._mean([rating for _, rating in self._recent], 1.0, 0.0)
        return self._mean([rating for name, rating in self._recent if name == source], PRIOR, overall)

    def _mean(self, ratings: Sequence[float], prior: float, before: float) -> float:
        """Return the weighted mean of `ratings`, oldest first, together with `prior` ratings of value `before`."""
        weights = [DECAY**age for age in range(len(ratings))]
        total = sum(w * r for w, r in zip(weights, reversed(ratings), strict=True))
        return (total + prior * before) / (sum(weights) + prior)

    def add(self, source: str, rating: float) -> None:
        self._recent.append([source, rating])

    def load_state_dict(self, state: Iterable[Any] | None) -> None:
        """Load a state. It may come from an earlier version, whose ratings have no sources."""
        super().load_state_dict(pair if isinstance(pair, list) else ["", pair] for pair in state or ())

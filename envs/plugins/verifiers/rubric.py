"""The functions of a rubric as components of the reward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...trajectory import Score
from .library import library

TOTAL = "rubric"
"""The one component of a rubric whose sum is not that of its functions."""
TAKEN = frozenset({"task", "environment", "curiosity", "coherence", "penalty"})
"""Components of our own, which a function of a rubric cannot be called."""


@dataclass(frozen=True)
class RubricParts:
    """The functions of a rubric: components with their weights, and monitored values.

    weights: None if the total is not the weighted sum of functions with distinct names. It is then one component.
    """

    weights: Mapping[str, float] | None
    monitored: frozenset[str] = frozenset()

    @classmethod
    def of(cls, rubric: Any) -> RubricParts:
        """Return the parts of a rubric, or of a group of rubrics."""
        vf = library()
        weights: dict[str, float] = {}
        monitored: set[str] = set()
        for part in getattr(rubric, "rubrics", None) or [rubric]:
            names = [getattr(f, "__name__", repr(f)) for f in part.funcs]
            if type(part).__name__.endswith("MonitorRubric"):
                monitored |= set(names)
                continue
            own = type(part).score_group is not vf.Rubric.score_group or hasattr(part, "env_map")
            if own or len(names) != len(part.weights) or len(set(names)) < len(names) or set(names) & set(weights):
                return cls(None, frozenset(monitored))
            weights |= dict(zip(names, map(float, part.weights), strict=True))
        return cls(weights, frozenset(monitored))

    def scores(self, metrics: Mapping[str, Any], reward: float) -> tuple[tuple[Score, ...], dict[str, float]]:
        """Return a state's scores and its other columns."""
        numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float))}
        if self.weights is None:
            return (Score(TOTAL, reward),), numbers
        scores = tuple(Score(component(n), numbers.get(n), w) for n, w in self.weights.items())
        return scores, {n: v for n, v in numbers.items() if n not in self.weights}


def component(name: str) -> str:
    """Return the component name of a function."""
    return f"{TOTAL}_{name}" if name in TAKEN else name

"""The few numbers that a list of runs shows of each, small enough to sit in the status file."""

from __future__ import annotations

from collections.abc import Mapping

NAMES = ("success/train", "success/eval_greedy", "success/eval_sampled", "rewards/total/mean", "online/success")
POINTS = 32


class Summary:
    """For each of `NAMES` the last value and a curve of at most `POINTS` means over the whole run."""

    def __init__(self) -> None:
        self._series: dict[str, _Curve] = {}

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Take what is needed of a step's metrics."""
        for name in NAMES:
            value = values.get(name)
            if value is not None and value == value:
                self._series.setdefault(name, _Curve()).add(value)

    def to_json(self) -> dict[str, dict[str, object]]:
        """`{name: {"last": x, "curve": [..]}}`."""
        return {name: {"last": c.last, "curve": [round(v, 4) for v in c.points()]} for name, c in self._series.items()}


class _Curve:
    """Means of equal spans; when there are too many, neighbours merge and the span doubles."""

    def __init__(self) -> None:
        self.last = 0.0
        self.span = 1
        self.done: list[float] = []
        self.total = 0.0
        self.count = 0

    def add(self, value: float) -> None:
        self.last = value
        self.total += value
        self.count += 1
        if self.count == self.span:
            self.done.append(self.total / self.count)
            self.total, self.count = 0.0, 0
            if len(self.done) == POINTS:
                self.done = [(a + b) / 2 for a, b in zip(self.done[::2], self.done[1::2], strict=True)]
                self.span *= 2

    def points(self) -> list[float]:
        return [*self.done, self.total / self.count] if self.count else list(self.done)

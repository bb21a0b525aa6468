"""The serving side of an online run: requests, ratings, speed, and the policy version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....configs import metric_names as metric
from ....engine.runs.health.headline import RATE_WINDOW
from ...format import count, number, percent, trend
from .line import Line
from .pane import Pane


class ServingPanel(Pane):
    """Serving metrics `online/*`. Rates cover the last `RATE_WINDOW` requests."""

    title = f"Serving ─ of the last {RATE_WINDOW} requests"

    def __init__(self) -> None:
        super().__init__("serving")
        self.latest: Mapping[str, float] = {}
        self.trends: Mapping[str, Sequence[tuple[int, float]]] = {}
        self.answered = 0

    def put(
        self, answered: int, latest: Mapping[str, float], trends: Mapping[str, Sequence[tuple[int, float]]]
    ) -> None:
        self.answered, self.latest, self.trends = answered, latest, trends
        self.changed()

    def build(self, width: int, height: int) -> list[Line]:
        p, get = self.palette, self.latest.get
        if not self.answered:
            return [Line(p).add("waiting for the first request", p.faint, cells=width, align="^")]
        success, alone = get(metric.ONLINE_SUCCESS), get(metric.ONLINE_SUCCESS_INITIAL)
        rows = [("requests", count(self.answered), "", "")]
        if success is None:
            rows.append(("success", "not known", "the tasks have no known answer", ""))
        else:
            gain = "" if alone is None else f"{percent(alone)} without the vote"
            rows.append(("success", percent(success), gain, metric.ONLINE_SUCCESS))
        rows.append(("confidence", percent(get(metric.CONFIDENCE)), "of a vote", metric.CONFIDENCE))
        latency = get(metric.LATENCY)
        rows.append(("latency", f"{number(latency)} s" if latency is not None else "–", "", metric.LATENCY))
        version, waiting = get(metric.SERVING_VERSION), get(metric.QUEUE_DEPTH)
        rows.append(("version", _whole(version, "v"), f"queue {_whole(waiting)}", metric.SERVING_VERSION))
        lost = sum(v for v in (get(metric.TASKS_LOST), get(metric.TASKS_DROPPED)) if v is not None and v == v)
        if lost:
            rows.append(("lost", number(lost), "updates that found no room", ""))
        lines = []
        for title, value, note, name in rows:
            line = Line(p)
            if len(title) + len(value) + 1 <= width:
                line.add(f"{title:<11}"[: max(len(title) + 1, min(11, width - len(value)))], p.muted)
            if not line.offer(Line(p).add(value, p.strong), width):
                continue
            if note:
                line.offer(Line(p).add(f"  {note}", p.faint), width)
            cells = min(16, width - line.width - 2)
            if name and cells >= 4:
                line.right(Line(p).add(trend(self.trends.get(name, ()), cells), p.accent), width)
            lines.append(line)
        return lines


def _whole(value: float | None, before: str = "") -> str:
    return "–" if value is None or not abs(value) < 1e15 else f"{before}{value:.0f}"

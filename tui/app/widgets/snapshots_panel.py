"""Versions of the policy: published and served snapshots, checkpoints and evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....configs import metric_names as metric
from ....engine.runs.types import Event
from ...format import ago, number, percent
from ..live_data import Kind
from .line import Line
from .pane import Pane

TITLES: Mapping[Kind, str] = {
    "rft": "Checkpoints", "sft": "Checkpoints", "online": "Versions",
}  # fmt: skip


class SnapshotsPanel(Pane):
    """Events `snapshot`, `checkpoint`, `eval` and the metrics `online/*`."""

    def __init__(self) -> None:
        super().__init__("versions")
        self.kind: Kind = "rft"
        self.latest: Mapping[str, float] = {}
        self.events: Sequence[Event] = ()

    def put(self, kind: Kind, latest: Mapping[str, float], events: Sequence[Event]) -> None:
        self.kind, self.latest, self.events = kind, latest, events
        self.title = TITLES[kind]
        self.changed()

    def build(self, width: int, height: int) -> list[Line]:
        p = self.palette
        lines = self._now(width)
        told = set()
        for event in reversed(self.events):
            line = self._event(event, width)
            if line is not None and (event.kind, event.step, event.kind == "snapshot" and event.id) not in told:
                told.add((event.kind, event.step, event.kind == "snapshot" and event.id))
                lines.append(line)
        if not lines:
            why = "none yet; c publishes" if self.kind == "online" else "none yet; c saves one"
            lines.append(Line(p).add(self.coming(why), p.faint, cells=width, align="^"))
        return lines

    def _now(self, width: int) -> list[Line]:
        p, now = self.palette, self.app.clock()
        newest = {str(e.data.get("action", "published")): e for e in self.events if e.kind == "snapshot"}
        lines = []
        for title, action, name in (
            ("published", "published", metric.SNAPSHOT_VERSION),
            ("serving", "loaded", metric.SERVING_VERSION),
        ):
            event, known = newest.get(action), self.latest.get(name)
            version = event.data.get("version") if event is not None else None
            if version is None and known is not None and abs(known) < 1e15:
                version = f"{known:.0f}"
            if version is None:
                continue
            line = Line(p)
            line.offer(Line(p).add(f"{title:<10}", p.muted), width - 4)
            line.offer(Line(p).add(f"v{version}", p.strong), width)
            if event is not None:
                line.offer(Line(p).add(f"   {ago(now - event.time)} ago", p.muted), width)
            lines.append(line)
        return lines

    def _event(self, event: Event, width: int) -> Line | None:
        p = self.palette
        data = event.data
        if event.kind == "eval":
            names = ("live", "greedy") if "live" in data else ("greedy", "sampled")
            said = {"live": "newest ", "greedy": "smoothed " if "live" in data else "greedy ", "sampled": "sampled "}
            line = Line(p)
            if not line.offer(Line(p).add(f"eval {event.step} ", p.muted), width):
                return None
            for name in names:
                value, reward = data.get(name), data.get(f"reward_{name}")  # of a graded reward there is no success
                shown = percent(value) if isinstance(value, (int, float)) else ""
                shown = number(float(reward)) if isinstance(reward, (int, float)) else shown
                if shown:
                    line.offer(Line(p).add(said[name], p.faint).add(shown, p.strong).gap(), width)
                match data.get(f"{name}_interval"):
                    case [float(low), float(high)]:
                        line.offer(Line(p).add(f"({percent(low)} to {percent(high)})", p.faint).gap(), width)
            return line
        if event.kind == "checkpoint":
            line = Line(p)
            if not line.offer(Line(p).add("checkpoint ", p.muted).add(str(event.step), p.text), width):
                return None
            line.offer(Line(p).add(f"   {ago(self.app.clock() - event.time)} ago", p.muted), width)
            return line
        if event.kind == "snapshot" and data.get("action") in ("held", "rolled_back"):
            return Line(p).add("⚠ ", p.warn).add(f"{event.step} {event.message}", p.text, cells=max(1, width - 2))
        return None

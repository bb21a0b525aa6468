"""Versions of the policy: published and served snapshots, checkpoints and evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....engine.runs.types import Event
from ...format import ago, number, percent
from .line import Line
from .pane import Pane


class SnapshotsPanel(Pane):
    """Reads the events of kinds `snapshot`, `checkpoint`, `eval` and the metrics `online/*`."""

    title = "Snapshots"

    def __init__(self, name: str = "snapshots") -> None:
        super().__init__(name)
        self.latest: Mapping[str, float] = {}
        self.events: Sequence[Event] = ()

    def put(self, latest: Mapping[str, float], events: Sequence[Event]) -> None:
        """The last values, and the events, newest last."""
        self.latest, self.events = latest, events
        self.changed()

    def build(self, width: int, height: int) -> list[Line]:
        """What is published and served now, then what happened last, newest first."""
        p = self.palette
        lines: list[Line] = []
        now = self.app.clock()
        actions = {}
        for event in self.events:
            if event.kind == "snapshot":
                actions[str(event.data.get("action", "published"))] = event
        published, loaded = actions.get("published"), actions.get("loaded")
        version = self.latest.get("online/snapshot_version")
        if published is not None or version is not None:
            shown = published.data.get("version") if published else number(int(version or 0))
            line = Line(p).add("published ", p.muted).add(f"v{shown}", p.strong)
            if published is not None:
                line.add(f"   {ago(now - published.time)} ago", p.muted)
            lines.append(line)
        serving = self.latest.get("online/serving_version")
        if loaded is not None or serving is not None:
            shown = loaded.data.get("version") if loaded else number(int(serving or 0))
            line = Line(p).add("serving   ", p.muted).add(f"v{shown}", p.strong)
            queue = self.latest.get("online/queue_depth")
            if queue is not None:
                line.add(f"   queue {int(queue)}", p.muted)
            lines.append(line)
        for event in reversed(self.events):
            if event.kind == "snapshot" and event.data.get("action") in ("held", "rolled_back"):
                lines.append(
                    Line(p).add("⚠ ", p.warn).add(f"{event.step} {event.message}", p.text, cells=max(1, width - 2))
                )
            elif event.kind == "eval":
                greedy, sampled = event.data.get("greedy"), event.data.get("sampled")
                line = Line(p).add(f"eval {event.step} ", p.muted)
                words = ("greedy ", "sampled ") if width >= 33 else ("", "/ ")
                if isinstance(greedy, (int, float)):
                    line.add(words[0], p.faint).add(percent(greedy), p.strong).gap()
                if isinstance(sampled, (int, float)):
                    line.add(words[1], p.faint).add(percent(sampled), p.text)
                lines.append(line)
            elif event.kind == "checkpoint":
                line = Line(p).add("checkpoint ", p.muted).add(str(event.step), p.text)
                lines.append(line.add(f"   {ago(now - event.time)} ago", p.muted))
        if not lines:
            lines.append(Line(p).add("none yet; c saves one now", p.faint, cells=width, align="^"))
        return lines

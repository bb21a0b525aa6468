"""Where a step's time goes, how many tokens pass, and the memory it takes."""

from __future__ import annotations

from collections.abc import Mapping

from ....configs import metric_names as metric
from ....engine.runs.control.live import InFlight
from ...format import bar, duration, number, percent
from .line import Line
from .pane import Pane

PHASES = (*metric.PHASES, "record")


class SpeedPanel(Pane):
    """Metrics `time/*`, `tokens/*` and `memory/*` of the last step."""

    title = "Speed of the last step"

    def __init__(self) -> None:
        super().__init__("speed")
        self.latest: Mapping[str, float] = {}
        self.flying: InFlight | None = None

    def put(self, latest: Mapping[str, float], flying: InFlight | None = None) -> None:
        self.latest, self.flying = latest, flying
        self.title = "Speed of the last step"
        if flying is not None and flying.count:
            self.title = f"Speed ─ {flying.count:,} in flight"
        self.changed()

    def build(self, width: int, height: int) -> list[Line]:
        p = self.palette
        get = self.latest.get
        step = get(metric.STEP_SECONDS)
        lines: list[Line] = []
        facts: list[Line] = []
        if step:
            facts.append(Line(p).add(f"{number(step)} s", p.strong).add("/step", p.muted))
            tokens = get(metric.TOKENS_AGENT)
            if tokens:
                facts.append(Line(p).add(number(tokens / step), p.text).add(" agent tok/s", p.muted))
        if (rss := get(metric.MEMORY_RSS)) is not None:
            facts.append(Line(p).add("RAM ", p.muted).add(f"{number(rss / 1024)} GiB", p.text))
        if (gpu := get(metric.MEMORY_GPU)) is not None and gpu > 0:
            facts.append(Line(p).add("GPU ", p.muted).add(f"{number(gpu / 1024)} GiB", p.text))
        for fact in facts:
            if not (lines and lines[-1].offer(Line(p).gap(2).extend(fact), width)) and fact.width <= width:
                lines.append(fact)
        spent = {name: get(metric.PHASE_SECONDS(name)) for name in PHASES}
        known = [(name, seconds) for name, seconds in spent.items() if seconds is not None]
        lines += self._in_flight(width, height - len(lines) - len(known) - 1)
        whole = step or sum(v for _, v in known) or 1.0
        rest = whole - sum(v for _, v in known)
        if known and rest > 0.005 * whole:
            known.append(("other", rest))
        names = min(12, max(4, width - 8), width)
        room = width - names - 6 - 9
        for index, (name, seconds) in enumerate(known):
            line = Line(p).add(name, p.text, cells=names)
            if room >= 3:
                line.add(bar(seconds / whole, room), p.series[index % len(p.series)], cells=room)
            for text, style, cells in ((percent(seconds / whole), p.text, 6), (f"{number(seconds)} s", p.faint, 9)):
                line.offer(Line(p).add(text, style, cells=max(cells, len(text) + 1), align=">"), width)
            lines.append(line)
        return lines or [Line(p).add(self.coming("measured with the first step"), p.faint, cells=width, align="^")]

    def _in_flight(self, width: int, room: int) -> list[Line]:
        p, flying = self.palette, self.flying
        if flying is None:
            return []
        line = Line(p).add(f"{flying.count:,}", p.strong).add(" in flight", p.muted)
        if flying.median is not None:
            line.offer(Line(p).gap(2).add(f"took {duration(flying.median)}", p.text), width)
        if flying.p95 is not None:
            line.offer(Line(p).add(f", 95 % under {duration(flying.p95)}", p.muted), width)
        lines = [line] if line.width <= width else []
        now = self.app.clock()
        for flight in flying.longest[: max(0, room - 1)]:
            age = duration(max(0.0, now - flight.began))
            told = Line(p).gap(2).add(age, p.text, cells=8, align=">").gap(2).add(flight.id, p.accent)
            told.offer(Line(p).gap(2).add(flight.what, p.muted), width)
            lines += [told] if told.width <= width else []
        return lines

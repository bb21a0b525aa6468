"""Where a step's time goes, how many tokens pass, and the memory it takes."""

from __future__ import annotations

from collections.abc import Mapping

from ...format import bar, number, percent
from .line import Line
from .pane import Pane

PHASES = ("generate", "environment", "reward", "logprobs", "backward", "record")


class SpeedPanel(Pane):
    """Reads `time/*`, `tokens/*` and `memory/*` of the last step."""

    title = "Speed of the last step"

    def __init__(self, name: str = "speed") -> None:
        super().__init__(name)
        self.latest: Mapping[str, float] = {}

    def put(self, latest: Mapping[str, float]) -> None:
        """The last values."""
        self.latest = latest
        self.changed()

    def build(self, width: int, height: int) -> list[Line]:
        """Seconds a step, tokens a second, memory; then one bar a phase."""
        p = self.palette
        get = self.latest.get
        step = get("time/step")
        lines: list[Line] = []
        facts: list[Line] = []
        if step:
            facts.append(Line(p).add(f"{number(step)} s", p.strong).add("/step", p.muted))
            tokens = get("tokens/agent")
            if tokens:
                facts.append(Line(p).add(number(tokens / step), p.text).add(" agent tok/s", p.muted))
        if (rss := get("memory/rss_mib")) is not None:
            facts.append(Line(p).add("RAM ", p.muted).add(f"{number(rss / 1024)} GiB", p.text))
        if (gpu := get("memory/gpu_mib")) is not None and gpu > 0:
            facts.append(Line(p).add("GPU ", p.muted).add(f"{number(gpu / 1024)} GiB", p.text))
        for fact in facts:
            if not (lines and lines[-1].offer(Line(p).gap(2).extend(fact), width)) and fact.width <= width:
                lines.append(fact)
        known = [(name, get(f"time/{name}", 0.0)) for name in PHASES if f"time/{name}" in self.latest]
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
        return lines or [Line(p).add("measured with the first step", p.faint, cells=width, align="^")]

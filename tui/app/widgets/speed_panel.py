"""Where a step's time goes, how many tokens pass, and the memory it takes."""

from __future__ import annotations

from collections.abc import Mapping

from ...format import bar, number, percent
from .line import Line
from .pane import Pane

PHASES = ("generate", "environment", "reward", "logprobs", "backward", "record")


class SpeedPanel(Pane):
    """Reads `time/*`, `tokens/*` and `memory/*` of the last step."""

    title = "Speed"

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
        if step:
            line = Line(p).add(f"{number(step)} s", p.strong).add("/step", p.muted)
            tokens = get("tokens/agent")
            if tokens:
                line.gap(2).add(number(tokens / step), p.text).add(" agent tok/s", p.muted)
            lines.append(line.gap(2))
        line = Line(p)
        if (rss := get("memory/rss_mib")) is not None:
            line.add("RAM ", p.muted).add(f"{number(rss / 1024)} GiB", p.text).gap(2)
        if (gpu := get("memory/gpu_mib")) is not None and gpu > 0:
            line.add("GPU ", p.muted).add(f"{number(gpu / 1024)} GiB", p.text)
        if lines and lines[0].width + line.width <= width:
            lines[0].extend(line)
        elif line.width:
            lines.append(line)
        known = [(name, get(f"time/{name}", 0.0)) for name in PHASES if f"time/{name}" in self.latest]
        whole = step or sum(v for _, v in known) or 1.0
        rest = whole - sum(v for _, v in known)
        if known and rest > 0.005 * whole:
            known.append(("other", rest))
        room = max(3, width - 12 - 6 - 8)
        for index, (name, seconds) in enumerate(known):
            line = Line(p).add(name, p.text, cells=12)
            line.add(bar(seconds / whole, room), p.series[index % len(p.series)], cells=room)
            line.add(percent(seconds / whole), p.text, cells=6, align=">").add(
                f"{number(seconds)} s", p.faint, cells=8, align=">"
            )
            lines.append(line)
        return lines or [Line(p).add("measured with the first step", p.faint, cells=width, align="^")]

"""Panels of the dashboard: serving, versions, speed and log, and the base class of panels that show a reading."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from ....configs import metric_names as metric
from ....engine.runs.control.live import InFlight, in_flight
from ....engine.runs.health.headline import RATE_WINDOW
from ....engine.runs.types import Event, RunInfo
from ...format import ago, bar, count, duration, number, percent, trend
from ...text import width as cells_of
from ..live_data import Points, Reading
from .pane import Line, Pane, wrapped

PHASES = (*metric.PHASES, "record")
_LOGGED = re.compile(
    r"\d{4}-\d\d-\d\d[ T](?P<time>\d\d:\d\d:\d\d)[,.]?\d* (?P<level>[A-Z]+) [\w.]+: ?(?P<message>.*)", re.DOTALL
)

_WARNED = re.compile(r"(?P<file>\S+\.py):(?P<line>\d+): (?P<what>\w*Warning: .*)", re.DOTALL)
"""A line from Python's `warnings`, which precedes an indented source line."""
_LIBRARY = re.compile(r"[/\\](?:site-packages|dist-packages|lib[/\\]python3[.\d]*)[/\\]")
_BAR = re.compile(r"(?P<share>\d+)%\|.*\|")


class LivePanel(Pane):
    """A panel that shows the newest reading of a run."""

    reading = Reading(RunInfo("", "", "", "running"))

    def put(self, reading: Reading) -> None:
        self.reading = reading
        self.changed()

    def nothing(self, when: str, width: int) -> list[Line]:
        """Return the line of an empty panel: when data will appear, or that an ended run has none."""
        text = "not recorded" if self.reading.complete else when
        return [Line(self.palette).add(text, self.palette.faint, cells=width, align="^")]

    @property
    def latest(self) -> Mapping[str, float]:
        return self.reading.latest

    @property
    def trends(self) -> Mapping[str, Points]:
        return self.reading.trends

    def with_trend(self, line: Line, name: str, width: int) -> Line:
        cells = min(16, width - line.width - 2)
        if name and cells >= 4:
            line.right(Line(self.palette).add(trend(self.trends.get(name, ()), cells), self.palette.accent), width)
        return line


class ServingPanel(LivePanel):
    """Serving metrics `online/*`. Rates cover the last `RATE_WINDOW` requests."""

    name = "serving"
    title = f"Serving ─ last {RATE_WINDOW} requests"

    def build(self, width: int, height: int) -> list[Line]:
        p, get, answered = self.palette, self.latest.get, self.reading.info.step
        if not answered:
            return [Line(p).add("waiting for the first request", p.faint, cells=width, align="^")]
        success, alone = get(metric.ONLINE_SUCCESS), get(metric.ONLINE_SUCCESS_INITIAL)
        rows = [("requests", count(answered), "", "")]
        if success is None:
            rows.append(("success", "not known", "the tasks have no known answer", ""))
        else:
            gain = "" if alone is None else f"{percent(alone)} without the vote"
            rows.append(("success", percent(success), gain, metric.ONLINE_SUCCESS))
        rows.append(("confidence", percent(get(metric.CONFIDENCE)), "of a vote", metric.CONFIDENCE))
        latency = get(metric.LATENCY)
        rows.append(("latency", f"{number(latency)} s" if latency is not None else "–", "", metric.LATENCY))
        version, waiting = get(metric.SERVING_VERSION), get(metric.QUEUE_DEPTH)
        rows.append(("version", _integer(version, "v"), f"queue {_integer(waiting)}", metric.SERVING_VERSION))
        lost = sum(v for v in (get(metric.TASKS_LOST), get(metric.TASKS_DROPPED)) if v is not None and v == v)
        if lost:
            rows.append(("lost", number(lost), "updates not queued", ""))
        lines = []
        for title, value, note, name in rows:
            line = Line(p)
            if len(title) + len(value) + 1 <= width:
                line.add(f"{title:<11}"[: max(len(title) + 1, min(11, width - len(value)))], p.muted)
            if not line.offer(Line(p).add(value, p.strong), width):
                continue
            if note:
                line.offer(Line(p).add(f"  {note}", p.faint), width)
            lines.append(self.with_trend(line, name, width))
        return lines


def _integer(value: float | None, before: str = "") -> str:
    return "–" if value is None or not abs(value) < 1e15 else f"{before}{value:.0f}"


class SnapshotsPanel(LivePanel):
    """Events `snapshot`, `checkpoint`, `eval` and the metrics `online/*`."""

    name = "versions"

    def put(self, reading: Reading) -> None:
        self.title = "Versions" if reading.kind == "online" else "Checkpoints"
        super().put(reading)

    def build(self, width: int, height: int) -> list[Line]:
        lines = self._now(width)
        shown_keys = set()
        for event in reversed(self.reading.versions):
            line = self._event(event, width)
            key = event.kind, event.step, event.kind == "snapshot" and event.id
            if line is not None and key not in shown_keys:
                shown_keys.add(key)
                lines.append(line)
        reason = "none yet; c publishes one" if self.reading.kind == "online" else "none yet; c saves one"
        return lines or self.nothing(reason, width)

    def _now(self, width: int) -> list[Line]:
        p, now = self.palette, self.app.clock()
        newest = {str(e.data.get("action", "published")): e for e in self.reading.versions if e.kind == "snapshot"}
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
            titles = {"live": "newest ", "greedy": "smoothed " if "live" in data else "greedy ", "sampled": "sampled "}
            line = Line(p)
            if not line.offer(Line(p).add(f"eval {event.step} ", p.muted), width):
                return None
            for name in names:
                value, reward = data.get(name), data.get(f"reward_{name}")  # a graded reward has no success
                shown = percent(value) if isinstance(value, (int, float)) else ""
                shown = number(float(reward)) if isinstance(reward, (int, float)) else shown
                if shown:
                    line.offer(Line(p).add(titles[name], p.faint).add(shown, p.strong).gap(), width)
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


class SpeedPanel(LivePanel):
    """Metrics `time/*`, `tokens/*` and `memory/*` of the last step."""

    name = "speed"
    title = "Speed of the last step"
    flying: InFlight | None = None

    def put(self, reading: Reading) -> None:
        self.flying = in_flight(reading.info.facts) if reading.info.active else None
        flying = self.flying.count if self.flying is not None else 0
        self.title = f"Speed ─ {flying:,} in flight" if flying else "Speed of the last step"
        super().put(reading)

    def build(self, width: int, height: int) -> list[Line]:
        p = self.palette
        get = self.latest.get
        step = get(metric.STEP_SECONDS)
        lines, facts = list[Line](), list[Line]()
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
        total = step or sum(v for _, v in known) or 1.0
        rest = total - sum(v for _, v in known)
        if known and rest > 0.005 * total:
            known.append(("other", rest))
        names = min(12, max(4, width - 8), width)
        room = width - names - 6 - 9
        for index, (name, seconds) in enumerate(known):
            line = Line(p).add(name, p.text, cells=names)
            if room >= 3:
                line.add(bar(seconds / total, room), p.series[index % len(p.series)], cells=room)
            for text, style, cells in ((percent(seconds / total), p.text, 6), (f"{number(seconds)} s", p.faint, 9)):
                line.offer(Line(p).add(text, style, cells=max(cells, len(text) + 1), align=">"), width)
            lines.append(line)
        return lines or self.nothing("appears after the first step", width)

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
            entry = Line(p).gap(2).add(age, p.text, cells=8, align=">").gap(2).add(flight.id, p.accent)
            entry.offer(Line(p).gap(2).add(flight.what, p.muted), width)
            lines += [entry] if entry.width <= width else []
        return lines


def telling(lines: Sequence[str]) -> list[str]:
    """Drop warnings of libraries and finished progress bars from a log."""
    kept: list[str] = []
    source = False
    for index, text in enumerate(lines):
        follows, source = source and text.startswith("  "), False
        warned = _WARNED.fullmatch(text)
        bar = _BAR.search(text)
        if warned is not None:
            source = True
            if not _LIBRARY.search(warned["file"]):
                kept.append(f"{warned['what']} ({os.path.basename(warned['file'])}:{warned['line']})")
        elif bar is not None:
            if index == len(lines) - 1 and bar["share"] != "100":
                kept.append(text)
        elif text.strip() and not follows:
            kept.append(text)
    return kept


class LogPanel(LivePanel):
    """The end of the log without noise. `o` opens all of it."""

    name = "log"
    title = "Log"
    tail: Sequence[str] = ()

    def put(self, reading: Reading) -> None:
        tail = telling(reading.log)
        if tail != self.tail:
            self.tail = tail
            self.changed()

    def build(self, width: int, height: int) -> list[Line]:
        lines = [line for text in self.tail[-height:] for line in self._lines(text, width)]
        return lines[-height:] or [Line(self.palette).add("the log is empty", self.palette.faint)]

    def _lines(self, text: str, width: int) -> list[Line]:
        p = self.palette
        found = _LOGGED.match(text)
        if found is None:
            return [Line(p).add(text, p.muted, cells=width)]
        level, message = found["level"], found["message"]
        sign, tone = {"WARNING": ("⚠ ", p.warn), "ERROR": ("✗ ", p.bad), "CRITICAL": ("✗ ", p.bad)}.get(
            level, ("", p.text)
        )
        line = Line(p)
        line.offer(Line(p).add(found["time"], p.faint).gap(), width - 12)
        left = line.width
        parts = (sign + message).split("  ")
        lines = wrapped(p, _taken(parts, width - left), width, tone, after=line) or [line]
        indent = left if cells_of("  ".join(parts)) <= width - left else min(left, 2)
        lines += wrapped(p, _taken(parts, width - indent), width, tone, after=Line(p).gap(indent))
        if len(lines) > 2 or parts:  # a message takes at most two lines
            lines[1:] = [lines[1].cropped(width - 1).add("…", p.muted)]
        return lines


def _taken(parts: list[str], room: int) -> str:
    """Take the first parts that fit into a line, at least one. A part is a name with its number."""
    n = next((n for n in range(len(parts), 1, -1) if cells_of("  ".join(parts[:n])) <= room), 1)
    taken, parts[:n] = "  ".join(parts[:n]), []
    return taken

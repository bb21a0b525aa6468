"""The first line of the dashboard: run and progress. Parts that do not fit are left out as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..format import ago, count, duration, number, percent, progress, step_text
from ..progress_text import inside
from .live_data import Reading, State
from .theme import Palette
from .widgets.pane import Line


class HeaderField(NamedTuple):
    """A piece of the line. The highest ranks are dropped first. `gap` blanks precede it."""

    rank: int
    line: Line
    gap: int = 2


_NAME, _PROGRESS = 6, 56
"""Cells for the run's name, and for the progress before the name gets more. At 80 columns an id is whole."""


def header(palette: Palette, name: str, reading: Reading | None, now: float, width: int) -> tuple[Line, Line]:
    """Return the two sides of the first line: the run on the left, its progress on the right."""
    p = palette
    if reading is None:
        return Line(p).add(name, p.title, most=20), Line(p).add("reading…", p.faint)
    room = max(8, width - 8)  # the frame takes four cells on both sides
    right = fit(p, _where(p, reading, now, width), room - min(len(name), max(_NAME, room - _PROGRESS)))
    info = reading.info
    left = Line(p).add(name, p.title, most=max(1, min(24, room - right.width)))
    for text in (info.mode, info.environment, info.model, info.name):
        if text and left.width + len(text) + 3 <= room - right.width:
            left.add(" · ", p.faint).add(text, p.muted)
    return left, right


def fit(palette: Palette, parts: Sequence[HeaderField], width: int) -> Line:
    """Drop the least important parts until the others fit, and keep their order."""
    kept = list(parts)
    while kept and sum(part.line.width + part.gap for part in kept) - kept[0].gap > width:
        kept.remove(max(kept, key=lambda part: part.rank))
    line = Line(palette)
    for part in kept:
        line.gap(part.gap if line.width else 0).extend(part.line)
    return line


def _where(p: Palette, reading: Reading, now: float, width: int) -> list[HeaderField]:
    info = reading.info
    serving = reading.kind == "online"
    sign, style = p.status("" if reading.gone else info.status)
    word = "gone" if reading.gone else "serving" if serving and info.status == "running" else info.status
    parts = [HeaderField(0, Line(p).add(sign, style)), HeaderField(4, Line(p).add(word, style), gap=1)]
    if text := _asked(reading, now):
        parts.append(HeaderField(2, Line(p).add(text, p.warn_bold)))
    if trouble := info.facts.get("trouble"):
        parts.append(HeaderField(3, Line(p).add("not recorded", p.warn_bold)))
        parts.append(HeaderField(11, Line(p).add(str(trouble).split(";")[0], p.warn)))
    elif reading.state == "cannot" and info.status == "running":
        parts.append(HeaderField(9, Line(p).add("not learning", p.muted)))
    parts += _inside(p, reading, now)
    step, total = info.step, info.total_steps
    steps = Line(p).add(count(step) if total else step_text(info), p.strong)
    if total:
        steps.add(f"/{count(total)}", p.muted)
    parts += [HeaderField(6, Line(p).add("request" if serving else "step", p.muted)), HeaderField(1, steps, gap=1)]
    if total:
        share = min(step / total, 1.0)
        parts.append(HeaderField(8, Line(p).add(progress(share, 14 if width < 150 else 24), p.accent)))
        parts.append(HeaderField(7, Line(p).add(percent(share), p.text)))
    pace = reading.seconds_a_step
    if pace and not serving:
        parts.append(HeaderField(9, Line(p).add(f"{number(pace)} s/step", p.muted)))
        if total and info.status == "running" and step < total:
            parts.append(HeaderField(5, Line(p).add("ETA ", p.muted).add(duration((total - step) * pace), p.text)))
    return parts


def _asked(reading: Reading, now: float) -> str:
    """Return the pending request to the run, or an empty string if its status already shows it."""
    what = "learning " if reading.kind == "online" else ""
    when = "" if reading.kind == "online" else " after this step"
    seconds = 0.0 if reading.pending is None else now - reading.pending.time
    waits = "" if seconds < 2 else f" {seconds:.0f} s"
    words: dict[State, str] = {
        "pausing": f"{what}pauses{when}{waits}", "resuming": f"{what}resumes{waits}",
        "stopping": "saves and stops", "paused": f"{what}paused" if what else "",
    }  # fmt: skip
    return words.get(reading.state, "")


def _inside(p: Palette, reading: Reading, now: float) -> list[HeaderField]:
    info = reading.info
    if info.status not in ("starting", "running"):
        return []
    parts: list[HeaderField] = []
    position = inside(info.progress, reading.live)
    if position is not None and position.phase:
        line = Line(p).add(position.phase, p.text)
        if position.total > 1:
            line.add(f" {count(position.done)}/{count(position.total)}", p.text)
        parts.append(HeaderField(2, line))
    elif reading.phase and info.status == "starting":
        parts.append(HeaderField(3, Line(p).add(reading.phase, p.muted, most=40)))
    last_report = info.heard if reading.live is None else max(info.heard or 0.0, reading.live.time)
    if last_report is not None:
        silent = max(0.0, now - last_report)
        tone = p.warn if silent > max(60.0, 3 * (reading.seconds_a_step or 0.0)) else p.faint
        parts.append(HeaderField(3, Line(p).add(f"{ago(silent)} ago", tone)))
    return parts

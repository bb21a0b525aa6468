"""`grpo-tui inspect RUN --report`: the dashboard as a picture, or a page to filter and step through, for sharing."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import math
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from html import escape
from pathlib import Path

import orjson

from ...engine.imports.check import diagnose
from ...engine.runs.control.alerts import suggestion
from ...engine.runs.durable import replace_file
from ...engine.runs.errors import RecordError
from ...engine.runs.read.reader import RunReader
from ...engine.runs.search.query import Query
from ...engine.runs.search.views import Count
from ...engine.runs.types import RunInfo, StepReward, TrajectoryRecord, TrajectoryRow
from ..app.live_charts import CHARTS, metrics_of
from ..app.rollout_fields import END, PROMPT, Field, RolloutTexts
from ..format import count, number, step_text
from ..text import clip, literal
from .common import ExitCode, fail, say
from .dumps import dump_notes, opened

SIZE = (160, 48)
"""Columns and rows of the terminal that is drawn."""
ROLLOUTS = 1000
"""Rollouts on a page."""
BYTES = 16 << 20
"""Bytes of their texts and numbers, about."""
TEXT = 8000
"""Characters of one text."""
CURVES = 200
_POINTS = 300
"""Points of a curve."""
_BLOCK = 8
"""Rollouts that are taken together, so that groups stay whole."""


def write_report(home: Path, runs: Sequence[RunInfo], out: Path, query: Query) -> None:
    """Write the live view of a run as `.svg`, or a page (`.html`) of a run or of two, with rollouts of a query."""
    kind = out.suffix.lower()
    if kind not in (".html", ".svg"):
        fail(f"--report: {out} must end in .html or .svg", ExitCode.USAGE)
    if kind == ".svg" and (len(runs) > 1 or not query.everything):
        fail(
            f"--report: {out} shows the dashboard of one run; --against, --filter and --search need .html",
            ExitCode.USAGE,
        )
    if not out.parent.is_dir():
        fail(f"--report: there is no folder {out.parent}; create it first", ExitCode.USAGE)
    picture = draw(home, runs[0]) if len(runs) == 1 or kind == ".svg" else ""
    text = picture if kind == ".svg" else page(runs, picture, query)
    try:
        replace_file(out, text.encode(), wait=False)
    except OSError as error:
        fail(f"--report: {out} cannot be written: {error.strerror}")
    say(f"wrote {out}")


def draw(home: Path, run: RunInfo) -> str:
    """Return the dashboard as SVG, drawn by the app itself without a terminal."""
    from ..app.app import GrpoApp
    from ..app.destinations import Live

    async def shoot() -> str:
        app = GrpoApp(home, Live(Path(run.path)))
        async with app.run_test(size=SIZE) as pilot:
            await pilot.pause(1.0)
            return app.export_screenshot(title=literal(f"grpo-tui · {run.id}"))

    # the drawing names a web font: what is shared must not fetch anything, and `monospace` stands behind it
    return re.sub(r"@font-face\s*{[^}]*}", "", asyncio.run(shoot()))


def page(runs: Sequence[RunInfo], picture: str, query: Query) -> str:
    """Return one HTML file that fetches nothing: the picture, curves, rollouts to filter and step through, and tables.

    Its one script has a hash, so no other script runs.
    """
    with ExitStack() as stack:
        readers = [stack.enter_context(opened(run)) for run in runs]
        tables = _values(runs, readers) + "".join(map(_of_run, runs, readers))
        data = page_data(readers, [run.id for run in runs], query).decode()
        head = "".join(map(_facts, runs, readers))
    code, text = (
        Path(__file__).with_name(f"report_page.{kind}").read_text(encoding="utf-8") for kind in ("js", "html")
    )
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    parts = {
        "TITLE": escape(literal("grpo-tui: " + " and ".join(run.id for run in runs))),
        "HEAD": head + picture,
        "TABLES": tables,
        "DATA": data,
        "CODE": code,
        "HASH": f"sha256-{digest}",
    }
    return re.sub("@([A-Z]+)@", lambda found: parts[found[1]], text)  # in one pass: nothing in a part is replaced


def _facts(run: RunInfo, reader: RunReader) -> str:
    state = f"{run.status} at step {step_text(run)} · {count(reader.rollouts.total(), 'trajectory', 'trajectories')}"
    facts = " · ".join(t for t in (run.id, run.mode, run.environment, run.model, state) if t)
    read = dump_notes(run.facts) if run.facts.get("dump") else ()
    items = "".join(f"<li>{escape(text)}</li>\n" for text in read)
    return f"<p>{escape(literal(facts))}</p>\n" + (f"<ul>\n{items}</ul>\n" if items else "")


def _values(runs: Sequence[RunInfo], readers: Sequence[RunReader]) -> str:
    """Return the last value of each metric; of two runs, with the difference."""
    latest = [
        {**(run.facts.get("means") or {}), **reader.metrics.latest()} for run, reader in zip(runs, readers, strict=True)
    ]
    rows = []
    for name in sorted(set().union(*latest)):
        values = [of.get(name) for of in latest]
        rows.append([name, *map(number, values)])
        known = [value for value in values if value is not None]
        if len(runs) == 2:
            rows[-1].append(number(known[1] - known[0], signed=True) if len(known) == 2 else "")
    heads = ["metric", *(run.id for run in runs), *(["difference"] if len(runs) == 2 else [])]
    return _table("Last values", heads if len(runs) == 2 else ["metric", "value"], rows)


def _of_run(run: RunInfo, reader: RunReader) -> str:
    """Return the findings and events of a run."""
    kinds = ("alert", "eval", "beta", "snapshot", "checkpoint", "record", "error")
    found = diagnose(reader).found() if run.facts.get("dump") else []
    events = [event for event in reader.events(kinds=kinds, limit=500) if not (found and event.kind == "alert")]
    tables = ""
    if found:
        rows = [
            (
                f.severity,
                "" if step is None else step,
                f.message,
                suggestion(f.detector, f.subject, f.severity),
                ", ".join(f.trajectories),
            )
            for f, step in ((each.finding, each.step) for each in found)
        ]
        tables += _table(f"Findings of {run.id}", ("severity", "step", "message", "suggestion", "trajectories"), rows)
    if events:
        rows = [(e.step, e.kind, e.message) for e in events]
        tables += _table(f"Events of {run.id}", ("step", "kind", "message"), rows)
    return tables


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    def line(cells: Iterable[object], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(literal(str(cell)))}</{tag}>" for cell in cells) + "</tr>"

    return (
        f"<h2>{escape(literal(title))}</h2>\n<table>{line(heads, 'th')}{''.join(line(r, 'td') for r in rows)}</table>\n"
    )


def page_data(readers: Sequence[RunReader], names: Sequence[str], query: Query) -> bytes:
    """Return the data as JSON that is safe in an HTML script. Raises FilterError."""
    rollouts: list[bytes] = []
    contents = []
    for index, (reader, name) in enumerate(zip(readers, names, strict=True)):
        rows, matching = _selected(reader, index, query, ROLLOUTS // len(readers), BYTES // len(readers))
        rollouts += rows
        contents.append(f"{len(rows):,} of {matching} rollouts" + (f" of {literal(name)}" if len(names) > 1 else ""))
    matched = f" that match {literal(query.filter)}" if query.filter else ""
    spread = (
        f"This page holds {' and '.join(contents)}{matched}, evenly spaced. Texts are cut after {TEXT:,} characters."
    )
    rest = orjson.dumps({"runs": [literal(n) for n in names], "curves": curves(readers), "held": spread})
    data = rest[:-1] + b',"rollouts":[' + b",".join(rollouts) + b"]}"
    # No text can end the script. U+2028 and U+2029 are already made visible.
    return data.replace(b"<", b"\\u003c").replace(b">", b"\\u003e").replace(b"&", b"\\u0026")


def curves(readers: Sequence[RunReader]) -> dict[str, list[list[tuple[int, float]]]]:
    """Return the points of each metric for each run: for two runs, the metrics that both have.

    The metrics of the dashboard come first, and families such as the components of the reward after single metrics.
    """
    names = sorted(name for name in readers[0].metrics.names() if all(name in r.metrics.names() for r in readers[1:]))
    patterns = [pattern for charts in CHARTS.values() for chart in charts for pattern in chart.metrics]
    patterns.sort(key=lambda pattern: pattern.endswith("*"))
    found = {
        name: [r.metrics.points(name, max_points=_POINTS) for r in readers]
        for name in dict.fromkeys([*metrics_of(patterns, names), *names])
    }
    drawn = {literal(k): v for k, v in found.items() if any(sum(math.isfinite(y) for _, y in one) > 1 for one in v)}
    return dict(list(drawn.items())[:CURVES])


def _selected(reader: RunReader, run: int, query: Query, count: int, size: int) -> tuple[list[bytes], Count]:
    """Return rollouts as JSON within the bounds, in order, and how many match."""
    matching = reader.rollouts.count(query)
    documents: dict[int, bytes] = {}
    for row in _spread(reader, query, matching, count):
        try:
            record = reader.bodies.trajectory(row.n)
        except (RecordError, LookupError):
            continue
        one = orjson.dumps(_rollout(row, record, run))
        size -= len(one)
        if size < 0:
            break
        documents[row.n] = one
    return [documents[n] for n in sorted(documents)], matching


def _spread(reader: RunReader, query: Query, matching: int, count: int) -> Iterator[TrajectoryRow]:
    """Yield at most `count` rows in blocks at equal distances, in random order: any part of them is spread, too."""
    blocks = -(-matching // _BLOCK)
    chosen = min(blocks, count // _BLOCK)
    starts = [number * (blocks - 1) // max(1, chosen - 1) * _BLOCK for number in range(chosen)]
    random.Random(0).shuffle(starts)
    for start in starts:
        yield from reader.rollouts.page(query, offset=start, limit=_BLOCK)


def _rollout(row: TrajectoryRow, record: TrajectoryRecord, run: int) -> dict[str, object]:
    t, texts = record.trajectory, RolloutTexts(record.trajectory)
    rewards = {step.step: step for step in record.breakdown.steps} if record.breakdown is not None else {}
    return {
        "run": run,
        "n": row.n,
        "id": _text(t.id),
        "group": _text(row.group),
        "prompt_id": _text(row.prompt_id),
        "step": row.step,
        "reward": row.reward,
        "advantage": row.advantage,
        "correct": row.correct,
        "turns": row.turns,
        "penalties": row.penalties,
        "stop": _text(row.stop_reason),
        "prompt": _fields(texts.of(PROMPT)),
        "steps": [
            {"label": _text(s.label), "fields": _fields(texts.of(i)), **_reward(rewards.get(s.index))}
            for i, s in enumerate(t.steps)
        ],
        "end": _fields(texts.of(END)),
    }


def _reward(step: StepReward | None) -> dict[str, object]:
    if step is None:
        return {"reward": [], "penalties": []}
    values = [(_text(k), v.raw, v.normalized, v.weight, v.contribution) for k, v in step.components.items()]
    return {"reward": values, "penalties": [_text(f"{p.rule}: {p.why} {p.right}".strip()) for p in step.penalties]}


def _fields(fields: Iterable[Field]) -> list[tuple[str, str, str]]:
    return [(_text(f"{f.name} {f.note}".strip()), _text(f.text), f.tone) for f in fields]


def _text(text: str) -> str:
    """Return a text without characters that a page would obey, cut."""
    kept, rest = clip(text, TEXT)
    shown = "\n".join(literal(line.expandtabs(4)) for line in kept.split("\n"))
    return f"{shown}\n… {rest:,} more characters" if rest else shown

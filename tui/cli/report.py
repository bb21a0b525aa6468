"""`grpo-tui inspect RUN --report`: the dashboard as a picture or a page, for sharing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .common import ExitCode, fail

if TYPE_CHECKING:
    from ...engine.runs.read.reader import RunReader
    from ...engine.runs.types import RunInfo

SIZE = (160, 48)
"""Columns and rows of the terminal that is drawn."""


def write_report(home: Path, run: RunInfo, out: Path) -> None:
    """Draw the live view of `run` and write it to `out`: `.svg`, or `.html` with the numbers as tables."""
    kind = out.suffix.lower()
    if kind not in (".html", ".svg"):
        fail(f"--report: {out} must end in .html or .svg", ExitCode.USAGE)
    if not out.parent.is_dir():
        fail(f"--report: there is no folder {out.parent}; make it first", ExitCode.USAGE)
    picture = draw(home, run)
    text = picture if kind == ".svg" else page(run, picture)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"--report: {out} cannot be written: {error.strerror}")


def draw(home: Path, run: RunInfo) -> str:
    """Return the dashboard as SVG, drawn by the app itself without a terminal."""
    import asyncio

    from ..app.app import GrpoApp
    from ..app.destinations import Live
    from ..text import literal

    async def shoot() -> str:
        app = GrpoApp(home, Live(Path(run.path)))
        async with app.run_test(size=SIZE) as pilot:
            await pilot.pause(1.0)
            return app.export_screenshot(title=literal(f"grpo-tui · {run.id}"))

    # the drawing names a web font: what is shared must not fetch anything, and `monospace` stands behind it
    return re.sub(r"@font-face\s*{[^}]*}", "", asyncio.run(shoot()))


def page(run: RunInfo, picture: str) -> str:
    """Return one HTML file without scripts and without anything from elsewhere: the picture, the last values, the
    events."""
    from html import escape

    from ...engine.imports.check import diagnose
    from ...engine.runs.control.alerts import remedy
    from ..format import number, step_text
    from ..text import literal
    from .dumps import dump_notes, opened

    dump = run.facts.get("dump")
    with opened(run) as reader:
        numbers = {**(run.facts.get("means") or {}), **reader.metrics.latest()}
        events = reader.events(kinds=("alert", "eval", "beta", "snapshot", "checkpoint", "record", "error"), limit=500)
        count = reader.rollouts.total()
        shown = _rollouts(reader)
        found = diagnose(reader).found() if dump else []
        events = [event for event in events if not (found and event.kind == "alert")]

    def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
        lines = [f"<tr>{''.join(f'<td>{escape(literal(str(cell)))}</td>' for cell in row)}</tr>" for row in rows]
        head = "".join(f"<th>{name}</th>" for name in heads)
        return f"<h2>{title}</h2>\n<table><tr>{head}</tr>{''.join(lines)}</table>\n"

    state = f"{run.status} at step {step_text(run)} · {count:,} trajectories"
    facts = " · ".join(t for t in (run.mode, run.environment, run.model, state) if t)
    title = escape(literal(f"grpo-tui {'dump' if dump else 'run'} {run.id}"))
    read = "".join(f"<li>{escape(text)}</li>\n" for text in dump_notes(run.facts)) if dump else ""
    tables = f"<h2>What was read</h2>\n<ul>\n{read}</ul>\n" if read else ""
    if found:
        rows = [
            (f.grade, "" if step is None else step, f.message, remedy(f.detector, f.subject), ", ".join(f.trajectories))
            for f, step in ((each.finding, each.step) for each in found)
        ]
        tables += table("Findings", ("grade", "step", "what", "what helps", "trajectories"), rows)
    if events:
        tables += table("Events", ("step", "kind", "what"), ((e.step, e.kind, e.message) for e in events))
    tables += table("Last values", ("metric", "value"), ((k, number(v)) for k, v in sorted(numbers.items())))
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 1280px; margin: 2rem auto; padding: 0 1rem; color: #222; }}
svg {{ width: 100%; height: auto; }}
pre {{ font: 13px/1.4 ui-monospace, monospace; overflow-x: auto; background: #fcfcfa; padding: .5rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; }}
td, th {{ text-align: left; padding: .15rem .8rem .15rem 0; border-bottom: 1px solid #ddd; vertical-align: top; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #111; color: #ddd; }} td, th {{ border-color: #333; }} }}
</style>
<h1>{title}</h1>
<p>{escape(literal(facts))}</p>
{picture}
{tables}{shown}</html>
"""


def _rollouts(reader: RunReader) -> str:
    """Return the rollouts that earned most and least of the newest, as the stepper renders them."""
    from html import escape

    from ...engine.runs.errors import RecordError
    from ...engine.runs.search.query import Query
    from ..app.printed import html
    from ..format import number
    from ..text import literal

    newest = reader.rollouts.page(Query(sort="n", descending=True), limit=64)
    known = sorted((row for row in newest if row.reward is not None), key=lambda row: row.reward or 0.0)
    made = []
    for row in [*known[-1:], *known[:-1][:1]]:
        try:
            page = html(reader.bodies.trajectory(row.n))
        except (RecordError, LookupError):
            continue
        head = escape(literal(f"rollout {row.n} · reward {number(row.reward)}"))
        made.append(f"<details><summary>{head}</summary>{page}</details>\n")
    return f"<h2>Rollouts</h2>\n{''.join(made)}" if made else ""

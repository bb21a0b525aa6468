"""The data of a page of `--report`: curves and rollouts of one run or two, bounded."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence

import orjson

from ...engine.runs.errors import RecordError
from ...engine.runs.read.reader import RunReader
from ...engine.runs.search.query import Query
from ...engine.runs.search.views import Count
from ...engine.runs.types import StepReward, TrajectoryRecord, TrajectoryRow
from ..app.calls import root_of
from ..app.rollout_fields import Field, end_fields, prompt_fields, step_fields
from ..text import clip, literal

ROLLOUTS = 1000
"""Rollouts on a page."""
BYTES = 16 << 20
"""Bytes of their texts and numbers, about."""
TEXT = 8000
"""Characters of one text."""
_POINTS = 300
_CURVES = 60
_BLOCK = 8
"""Rollouts that are taken together, so that groups stay whole."""


def page_data(readers: Sequence[RunReader], names: Sequence[str], query: Query) -> bytes:
    """Return the data as JSON that can stand in a script of HTML. Raises FilterError."""
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
    """Return the points of each metric for each run: for two runs, the metrics that both have."""
    names = [name for name in readers[0].metrics.names() if all(name in r.metrics.names() for r in readers[1:])]
    found = {name: [r.metrics.points(name, max_points=_POINTS) for r in readers] for name in sorted(names)}
    drawn = {literal(k): v for k, v in found.items() if any(sum(math.isfinite(y) for _, y in one) > 1 for one in v)}
    return dict(list(drawn.items())[:_CURVES])


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
    t, root = record.trajectory, root_of(record.trajectory)
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
        "prompt": _fields(prompt_fields(t)),
        "steps": [
            {"label": _text(s.label), "fields": _fields(step_fields(s, root)), **_reward(rewards.get(s.index))}
            for s in t.steps
        ],
        "end": _fields(end_fields(t)),
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

"""Writers of the tests, and the comparison of what they wrote with what the importer returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.types import TrajectoryRecord, TrajectoryRow

from .scenario import Episode, Limits, Turn

ASPECTS = (
    "prompt", "turns", "calls", "results", "tool errors", "thoughts", "reward", "components", "advantage", "step",
    "group", "split", "stop", "error",
)  # fmt: skip
"""The columns of the table in docs/importing.md."""

Written = Callable[[list[Episode], Path], Any]


@dataclass(frozen=True)
class Writer:
    """A writer that follows the code of `package` at `version`. `lacks` says why its format cannot hold an aspect."""

    name: str
    version: str
    write: Written
    lacks: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    shown: Callable[[Turn], str] | None = None
    """The text of a turn as the format holds it, where calls are part of the text."""
    seen: Callable[[Episode], Episode] = lambda e: e
    """The episode as the format holds it."""
    group: Callable[[Episode], Any] | None = None
    """The group of an episode as the importer shows it, where the format names none."""
    order: Callable[[Episode], Any] | None = None
    """The order of the files, where it is not that of the training."""

    judged: Callable[[Episode], bool] = lambda e: False
    """Whether the file holds a judge's rollout of an episode. It belongs to no group of the policy."""

    def __str__(self) -> str:
        return self.name


def failures(writer: Writer, episodes: list[Episode], reader: RunReader) -> list[str]:
    """Return one line for each value that differs from the scenario."""
    rows = reader.rollouts.page(limit=10_000)
    judges = [row for row in rows if row.split == "judge"]
    if len(judges) != sum(map(writer.judged, episodes)):
        return [f"{len(judges)} judges for {sum(map(writer.judged, episodes))}"]
    rows = [row for row in rows if row.split != "judge"]
    if {row.group for row in judges} & {row.group for row in rows}:
        return ["a judge is in a group of the policy"]
    if len(rows) != len(episodes):
        return [f"{len(rows)} rollouts for {len(episodes)}"]
    found: list[str] = []
    records = [reader.bodies.trajectory(row.n) for row in rows]
    episodes = [writer.seen(e) for e in (sorted(episodes, key=writer.order) if writer.order else episodes)]
    for episode, row, record in zip(episodes, rows, records, strict=True):
        listed = {"reward": row.reward, "advantage": row.advantage, "split": row.split}
        for aspect, (expected, given) in _aspects(writer, episode, record, row).items():
            if not _same(expected, given):
                found.append(f"{episode.id}: {aspect}: {given!r} for {expected!r}")
            is_nan = isinstance(given, float) and math.isnan(given)  # lists mark it by a flag
            if aspect in listed and not is_nan and not _same(listed[aspect], given):
                found.append(f"{episode.id}: {aspect} in the list: {listed[aspect]!r} for {given!r}")
        for what in ("reward", "advantage", "step"):
            value = {"reward": record.trajectory.env_reward, "advantage": record.advantage, "step": row.step}[what]
            if value is None and not record.unknown.get(what):
                found.append(f"{episode.id}: no reason is given for the missing {what}")
    key = [(e.split, e.step, e.prompt_id) if "group" in writer.lacks else e.group for e in episodes]
    if "step" in writer.lacks and "group" in writer.lacks:
        key = [(e.split if "split" not in writer.lacks else "", e.question, e.system) for e in episodes]
    if writer.group is not None:
        key = [writer.group(e) for e in episodes]
    if _partition(key) != _partition([row.group for row in rows]):
        found.append(f"groups {[row.group for row in rows]} for {key}")
    return found


def _aspects(writer: Writer, e: Episode, record: TrajectoryRecord, row: TrajectoryRow) -> dict[str, tuple[Any, Any]]:
    """Return expected and given values by aspect."""
    t = record.trajectory
    prompt = [("system", e.system)] * bool(e.system) + [("user", e.question)] * bool(e.question)
    shown = writer.shown or (lambda turn: turn.text)
    calls = [[(c.name, dict(c.arguments)) for c in turn.calls] for turn in e.turns]
    parts = record.breakdown.steps[-1].components if record.breakdown is not None and record.breakdown.steps else {}
    pairs: dict[str, tuple[Any, Any]] = {
        "prompt": (prompt, [(m.role, m.text) for m in t.messages]),
        "turns": (
            [shown(turn) if shown(turn) or not turn.calls else None for turn in e.turns],
            [None if not shown(turn) and turn.calls else s.text for turn, s in zip(e.turns, t.steps, strict=False)]
            + [s.text for s in t.steps[len(e.turns) :]],
        ),
        "calls": (calls, [[(c.name, c.arguments) for c in s.calls] for s in t.steps]),
        "results": (
            [([c.result for c in turn.calls], "" if turn.calls else turn.heard) for turn in e.turns],
            [([c.result for c in s.calls], "" if s.calls else s.observation) for s in t.steps],
        ),
        "tool errors": (
            [[c.failed for c in turn.calls] for turn in e.turns],
            [[bool(c.error) for c in s.calls] for s in t.steps],
        ),
        "thoughts": ([turn.thought for turn in e.turns], [s.thought for s in t.steps]),
        "reward": (e.reward, t.env_reward),
        "components": (dict(e.components), {k: v.raw for k, v in parts.items()}),
        "advantage": (e.advantage, record.advantage),
        "step": (e.step, row.step),
        "split": (e.split, record.split),
        "stop": (e.stop, t.stop_reason),
        "error": (bool(e.error), bool(t.error)),
    }
    nothing = {
        "tool errors": [[False] * len(turn.calls) for turn in e.turns],
        "thoughts": ["" for _ in e.turns],
        "reward": None,
        "components": {},
        "advantage": None,
        "step": None,
        "stop": ("", "error"),
        "error": False,
    }
    return {
        name: pair if name not in writer.lacks else (nothing[name], pair[1])
        for name, pair in pairs.items()
        if name not in writer.lacks or name in nothing
    }


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=1e-6) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, tuple) and isinstance(b, str):
        return b in a
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    return a == b


def _partition(keys: Sequence[Any]) -> list[int]:
    first: dict[Any, int] = {}
    return [first.setdefault(key, i) for i, key in enumerate(keys)]

"""Summarise how rollouts behaved: shares and means over spans of steps."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ....configs import metric_names as metric
from ..schema import AMONG
from ..search.query import Selection
from .record import Record

Span = tuple[int, int] | None
"""First and last step, both inclusive. None means all rollouts, for a record without steps."""
TRAINED = "not (split:eval or split:validation or split:judge or split:replaced)"
"""The filter for rollouts that are not evaluations."""
_ADDS, _OWN = "adds to the reward", "columns of the record"
_FAMILIES = {
    _ADDS: metric.COMPONENT_SUM,
    "share of the advantage": metric.COMPONENT_ADVANTAGE_SHARE,
    "seconds": metric.PHASE_SECONDS,
}
SECTIONS = ("", "actions", "ended by", *_FAMILIES, _OWN)
_WAITS = (metric.TRAINER_IDLE, metric.ROLLOUTS_WAIT)
_MEANS = {
    "reward": "avg(reward)",
    "right": "avg(correct)",
    "turns": "avg(turns)",
    "tokens": "avg(tokens)",
    "penalties": "avg(penalties)",
}


@dataclass(frozen=True)
class SpanBehavior:
    """Means of a span by section and name. Actions are shares of all calls, and ends are shares of rollouts.

    The section `""` holds reward, right, turns, tokens and penalties. Unrecorded values are missing.
    """

    span: Span
    rollouts: int
    values: dict[tuple[str, str], float] = field(default_factory=dict)


def behavior(record: Record, selection: Selection, span: Span, metrics: bool) -> SpanBehavior:
    """Read one span. With `metrics`, add the metrics of its steps, which cover all rollouts of those steps."""
    source, parameters, _ = selection.source("" if selection.match else "rows_step")
    source, params = f"{source} AND {'1' if span is None else 'step BETWEEN ? AND ?'}", (*parameters, *(span or ()))
    means = record.all(f"SELECT count(*), {', '.join(_MEANS.values())} {source}", params)
    rollouts, *found = means[0] if means else (0,)
    values = {("", name): value for name, value in zip(_MEANS, found, strict=False) if value is not None}
    labels = record.labels()
    if labels is not None and rollouts:
        values |= _actions(record, source, params)
        for stop, n in record.all(f"SELECT stop, count(*) {source} GROUP BY stop", params):
            if labels.names.get(stop):
                values["ended by", labels.names[stop]] = n / rollouts
        extras = {id_: name for name, id_ in labels.of_kind("extra").items()}
        if extras:
            sql = f"SELECT name, avg(number) FROM extras WHERE name {AMONG} AND n IN (SELECT rows.n {source})"
            for id_, mean in record.all(f"{sql} GROUP BY name", (json.dumps([*extras]), *params)):
                component = extras[id_].startswith("component.")
                if mean is not None:
                    values[_ADDS if component else _OWN, extras[id_].removeprefix("component.")] = mean
    if metrics and span is not None:
        values |= _metrics(record, span)
    return SpanBehavior(span, rollouts, {key: value for key, value in values.items() if math.isfinite(value)})


def _actions(record: Record, source: str, params: Sequence[object]) -> dict[tuple[str, str], float]:
    counts: Counter[int] = Counter()
    sql = f"SELECT actions, count(*) FROM cards WHERE n IN (SELECT rows.n {source}) GROUP BY actions"
    for actions, n in record.all(sql, params):
        for action in actions.split(","):
            counts[int(action or 0)] += n
    del counts[0]
    labels = record.labels()
    names = {} if labels is None else labels.names
    return {("actions", names[id_]): n / counts.total() for id_, n in counts.items() if id_ in names}


def _metrics(record: Record, span: tuple[int, int]) -> dict[tuple[str, str], float]:
    columns: dict[int, tuple[str, str]] = {}
    for id_, name in record.all("SELECT id, name FROM metric_names"):
        section = next((s for s, family in _FAMILIES.items() if name in family), "seconds" if name in _WAITS else "")
        if section:
            columns[id_] = section, _FAMILIES[section].part(name)
    sql = f"SELECT name, avg(value) FROM metrics WHERE name {AMONG} AND step BETWEEN ? AND ? GROUP BY name"
    found = record.all(sql, (json.dumps([*columns]), *span))
    return {columns[id_]: value for id_, value in found if value is not None}


def trained(filter: str) -> str:
    """Restrict a filter to rollouts that are not evaluations."""
    return f"({filter}) and {TRAINED}" if filter else TRAINED


def spans(steps: Sequence[int], limit: int) -> list[Span]:
    """Divide steps into at most `limit` spans of about equal size."""
    if not steps:
        return [None]
    parts = min(limit, len(steps))
    edges = [len(steps) * i // parts for i in range(parts + 1)]
    return [(steps[a], steps[b - 1]) for a, b in pairwise(edges)]

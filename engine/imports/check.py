"""Diagnose a run or dump with the detectors of live training, step by step.

Checking reads bodies, which hold texts, weights, tools and the agent's tokens. For a dump, it reads the first `TEXTS`
bodies, and only the rows of the index for the others, so it is cheap at any size.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from heapq import merge
from itertools import groupby

from ...configs import metric_names as metric
from ...configs.schema import RunConfig
from ...configs.sections.rewards import SHAPED
from ...envs.trajectory import StopReason, is_cut
from ...rewards.batches import Batch, HeldOut, RolloutSummary, rollout_of, surprise_of
from ...rewards.diagnosis import Diagnosis
from ..runs.control.alerts import SUGGESTIONS
from ..runs.errors import RecordDamaged
from ..runs.learning import UseKind
from ..runs.read.reader import RunReader
from ..runs.search.query import Query
from ..runs.types import TEXT, TrajectoryRow
from .readers import DumpReader
from .rollout import AGENT_ROLES

TEXTS = 10_000
"""Maximum bodies of a dump to read, which takes half a millisecond each."""


def diagnose(reader: RunReader, config: RunConfig | None = None) -> Diagnosis:
    """Run the detectors over a whole record. config: the run's configuration, if it has one."""
    diagnosis = Diagnosis(None if config is None else config.rewards.diagnosis)
    apart = SHAPED if config is not None and config.training.shaping_apart else ()
    # method `reward` compares rewards with nothing, and a teacher adds its own term to the advantages
    compared = config is None or not (config.training.advantages == "reward" or config.training.distillation.teacher)
    rollouts = _Rollouts(reader, apart, compared, own=config is not None)
    steps = _by_step(reader, "split:train" if reader.rollouts.first("train") is not None else "")
    evaluations = deque(_evaluations(reader, rollouts))
    values: dict[int | None, dict[str, float]] = {**reader.metrics.by_step(diagnosis.reads)}
    without_rollouts = [(step, list[TrajectoryRow]()) for step in values]
    for step, rows in merge(steps, without_rollouts, key=lambda pair: -1 if pair[0] is None else pair[0]):
        while evaluations and step is not None and evaluations[0].step < step:
            diagnosis.evaluated(evaluations.popleft())
        if rows or step in values:
            seen = [rollouts.summary(row) for row in rows if row.turns is not None]
            diagnosis.observe(Batch(step, seen, values.pop(step, {})))
    if evaluations:
        diagnosis.evaluated(evaluations[-1])
    diagnosis.end()
    for event in reader.events(("alert",)):
        if event.data.get("detector") in SUGGESTIONS:  # skip detectors of earlier versions
            diagnosis.noted(event.message, event.step, event.data)
    return diagnosis


def _evaluations(reader: RunReader, rollouts: _Rollouts) -> Iterator[HeldOut]:
    sampled = dict(reader.metrics.points(metric.SUCCESS_SAMPLED))
    for step, rows in _by_step(reader, "split:eval") if sampled else ():
        yield HeldOut(step or 0, [rollouts.summary(row) for row in rows], sampled.get(step or 0))


def _by_step(reader: RunReader, filter_: str) -> Iterator[tuple[int | None, list[TrajectoryRow]]]:
    rows = reader.rollouts.each(Query(filter=filter_, sort="step"))
    return ((step, list(of_step)) for step, of_step in groupby(rows, key=lambda row: row.step))


class _Rollouts:
    def __init__(self, reader: RunReader, apart: tuple[str, ...], compared: bool, own: bool) -> None:
        self._reader = reader
        self._own = own
        self._shaping = apart
        self._compared = compared
        self._dump = isinstance(reader, DumpReader)
        self._unread = TEXTS if self._dump else math.inf
        self._group: tuple[int | None, str] | None = None
        found = ({row.n for row in reader.rollouts.each(Query(filter=f))} for f in ("nan", "unparsed", "error"))
        self._nan, self._unreadable, self._failed = found

    def summary(self, row: TrajectoryRow) -> RolloutSummary:
        """Return the summary of a rollout, from its row if its body is damaged."""
        self._unread -= 1
        if self._unread < 0:
            return self._of_row(row)
        try:
            record = self._reader.bodies.trajectory(row.n)
            stored = self._reader.bodies.tokens(row.n) if row.tokens and not self._dump else None
        except RecordDamaged:
            return self._of_row(row)
        steps, read = record.trajectory.steps, None
        tokens, surprise = sum(end - start for start, end in (s.token_span for s in steps)), None
        if stored is not None and any(stored.agent_mask):
            tokens = sum(map(bool, stored.agent_mask))
            surprise = surprise_of(record.trajectory, stored.logprobs, stored.agent_mask)
            group, start = (row.step, record.trajectory.group), steps[0].token_span[0] if steps else 0
            if start and self._group != group:
                ids, text_of = stored.token_ids, self._reader.bodies.text_of
                before, after = text_of(ids[:start]), text_of(ids[start:])
                self._group = group
                read = (before, after) if before is not None and after is not None else None
        found = rollout_of(
            record.trajectory,
            record.breakdown,
            tokens or row.tokens or 0,
            self._shaping,
            advantage=self._advantage(row),
            surprise=surprise,
            loss=None if record.use is None else record.use.loss,
            selected=record.use is not None and record.use.kind == UseKind.TRAINED,
            read=read,
        )
        # other trainers may put earlier turns of the agent into the prompt, so rollouts of a task differ in it
        continues = not self._own and any(m.role in AGENT_ROLES for m in record.trajectory.messages)
        return replace(found, prompt="") if continues else found

    def _of_row(self, row: TrajectoryRow) -> RolloutSummary:
        parts = {k.removeprefix("component."): v for k, v in row.extra.items() if k.startswith("component.")}
        numbers = {name: float(value) for name, value in parts.items() if isinstance(value, (int, float))}
        failed = row.n in self._failed and row.stop_reason in (StopReason.ERROR, StopReason.TIMEOUT)
        return RolloutSummary(
            row.id,
            row.group,
            math.nan if row.n in self._nan and row.reward is None else row.reward,
            numbers,
            row.correct,
            tuple(a for a in row.actions if a not in (TEXT, "?")),  # "?": a call that cannot be read
            row.tokens or 0,
            row.turns,
            unreadable=row.n in self._unreadable,
            failed=failed,
            call_failed=row.n in self._failed and not failed,
            task=row.prompt_id,
            answer=row.answer if row.answered else None,
            cut=is_cut(row.stop_reason),
            advantage=self._advantage(row),
        )

    def _advantage(self, row: TrajectoryRow) -> float | None:
        """Return the advantage. Rows do not store NaN: of a row with NaN and a finite reward, the advantage was NaN."""
        finite = row.n not in self._nan or row.reward is None or not math.isfinite(row.reward)
        return None if not self._compared else row.advantage if finite else math.nan

"""Tools for whole runs: lists, findings, recomputation, metrics, events, comparison, notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Annotated

from pydantic import Field

from ...configs.errors import ConfigError
from ...configs.metric_names import meaning
from ...engine.evaluation.results import compare, evaluations_of, read_evaluation
from ...engine.imports.check import diagnose
from ...engine.recompute.ledger import Wrong
from ...engine.runs.control.alerts import suggestion
from ...engine.runs.notes import Note
from ...engine.runs.types import Event, RunInfo
from ...rewards.diagnosis import Found
from ..cli.check import config_of, report_of
from ..cli.run_table import headline
from ..evaluation_text import difference
from .answers import ENTRIES, ToolAnswer, page
from .workspace import Limit, Offset, Rollout, Run, ToolError, Workspace, notes, number

LAST = 10
"""A compared metric is the mean over the last tenth of its values."""
Kinds = Annotated[
    Sequence[str], Field(description="alert, note, eval, error, checkpoint, rewards, … Empty: all kinds.")
]


@dataclass(frozen=True)
class ListedRun:
    """A run or dump. id: for the other tools. interval: of `success`, if an evaluation measured it."""

    id: str
    reward: float | None
    success: float | None
    interval: tuple[float, float] | None
    info: RunInfo


@dataclass(frozen=True)
class Diagnosed:
    """A fault, the step at which it began, and what helps."""

    found: Found
    suggestion: str


@dataclass(frozen=True)
class RunFindings:
    """Findings, the gravest first. not_checked: detectors without the data that they need."""

    findings: Sequence[Diagnosed]
    not_checked: Mapping[str, str]


@dataclass(frozen=True)
class Recomputed:
    """Recorded numbers that differ from their recomputation. given: those that were taken as recorded, and why."""

    compared: int
    wrong: Sequence[Wrong]
    given: Mapping[str, str]


@dataclass(frozen=True)
class Metric:
    """A metric with its last value."""

    name: str
    meaning: str
    step: int
    value: float


@dataclass(frozen=True)
class Compared:
    """Values of several runs, in their order: means of metrics over the last tenth, settings that differ, evaluations
    paired by task."""

    runs: Sequence[str]
    metrics: Mapping[str, Sequence[float | None]]
    settings: Mapping[str, Sequence[str | None]]
    evaluations: Sequence[str]


class RunTools(Workspace):
    """Tools that read whole runs."""

    def list_runs(self, offset: Offset = 0, limit: Limit = 20) -> ToolAnswer[list[ListedRun]]:
        """List dumps and runs, newest first, with status, reward and success."""
        found = self.list()
        rows, after = page(map(_listed, found[offset : offset + limit + 1]), offset, limit)
        return ToolAnswer(untrusted=rows, next_offset=after, total=len(found))

    def findings(self, run: Run, offset: Offset = 0) -> ToolAnswer[RunFindings]:
        """Diagnose a run: problems of rewards, tokens and learning, with numbers, rollout ids and a suggestion."""
        with self.open(run) as reader:
            try:
                config = config_of(self.find(run))
            except ConfigError:
                config = None
            diagnosis = diagnose(reader, config)
            found = diagnosis.found()
            advised = ((f, f.finding) for f in found[offset:])
            diagnosed = (Diagnosed(f, suggestion(x.detector, x.subject, x.severity)) for f, x in advised)
            shown, after = page(diagnosed, offset)
            answer = RunFindings(shown, diagnosis.unchecked())
            return ToolAnswer(untrusted=answer, next_offset=after, total=len(found), untrusted_notes=notes(reader))

    def recompute(self, run: Run, offset: Offset = 0) -> ToolAnswer[Recomputed]:
        """Recompute the numbers of a training run or dump from its record, and list those that differ."""
        with self.open(run) as reader:
            try:
                report = report_of(self.find(run), reader, "")
            except ConfigError:
                raise ToolError("the configuration of this run cannot be read") from None
            shown, after = page(islice(report.wrong, offset, None), offset)
            answer = Recomputed(report.compared.total(), shown, report.given)
            return ToolAnswer(
                untrusted=answer, next_offset=after, total=len(report.wrong), untrusted_notes=notes(reader)
            )

    def metric_names(self, run: Run, contains: str = "", offset: Offset = 0) -> ToolAnswer[list[Metric]]:
        """List metrics with meaning and last value. contains: a part of the name, such as `kl/`."""
        with self.open(run) as reader:
            last = reader.metrics.latest_points()
            found = [Metric(name, meaning(name), *last_point) for name, last_point in last.items() if contains in name]
            shown, after = page(found[offset:], offset)
            return ToolAnswer(untrusted=shown, next_offset=after, total=len(found), untrusted_notes=notes(reader))

    def metrics(
        self,
        run: Run,
        names: Annotated[list[str], Field(min_length=1, max_length=10)],
        from_step: int = 0,
        to_step: int | None = None,
        points: Annotated[int, Field(ge=1, le=ENTRIES - 2)] = 50,
    ) -> ToolAnswer[Mapping[str, list[tuple[int, float]]]]:
        """Read metrics by name, as (step, value). More steps than `points` are averaged over equal spans."""
        with self.open(run) as reader:
            read = reader.metrics.points
            curves = {n: read(n, after_step=from_step - 1, until_step=to_step, max_points=points) for n in names}
            return ToolAnswer(untrusted=curves, untrusted_notes=notes(reader))

    def events(self, run: Run, kinds: Kinds = (), offset: Offset = 0) -> ToolAnswer[list[Event]]:
        """List events, newest first: alerts, evaluations, errors, checkpoints, changes of rewards."""
        with self.open(run) as reader:
            found = reader.events(kinds or None, limit=offset + ENTRIES + 1)[::-1]
            shown, after = page(found[offset:], offset)
            return ToolAnswer(untrusted=shown, next_offset=after, untrusted_notes=notes(reader))

    def compare_runs(
        self, runs: Annotated[list[Run], Field(min_length=2, max_length=6)], offset: Offset = 0
    ) -> ToolAnswer[Compared]:
        """Compare runs: settings that differ, metrics at the end, and evaluations with intervals.

        Checkpoints are compared by their evaluations, which are runs of mode `eval`.
        """
        from ..app.screens.compare import FIRST, read_config  # with Textual, so when it is needed

        found = [self.find(run) for run in runs]
        flat = [read_config(Path(info.path)) for info in found]
        names = dict.fromkeys(name for config in flat for name in config)
        differ = [(name, values) for name in names if len(set(values := [c.get(name) for c in flat])) > 1]
        shown, after = page(differ[offset:], offset)
        last = {name: values for name in FIRST if any(values := [self._last(run, name) for run in runs])}
        answer = Compared([info.id for info in found], last, dict(shown), _evaluations(found))
        return ToolAnswer(untrusted=answer, next_offset=after, total=len(differ))

    def _last(self, run: str, name: str) -> float | None:
        with self.open(run) as reader:
            values = [value for _, value in reader.metrics.points(name)]
        return fmean(values[-max(1, len(values) // LAST) :]) if values else None

    def notes(self, run: Run, offset: Offset = 0) -> ToolAnswer[list[Note]]:
        """List the notes on rollouts of a run. Words with # are labels."""
        with self.open(run) as reader:
            found = list(reader.notes.read().values())
            shown, after = page(found[offset:], offset)
            return ToolAnswer(untrusted=shown, next_offset=after, total=len(found))

    def write_note(self, run: Run, rollout: Rollout, text: str) -> ToolAnswer[Note | None]:
        """Write a one-line note on a rollout, replacing its previous note. An empty text removes it."""
        with self.open(run) as reader:
            (row,) = reader.rollouts.rows([number(reader, rollout)])
            reader.notes.put(row.id, text)
            return ToolAnswer(untrusted=reader.notes.read().get(row.id))


def _listed(info: RunInfo) -> ListedRun:
    summary = headline(info)
    facts = {name: value for name, value in info.facts.items() if name != "summary"}
    name = str(info.facts.get("dump") or info.id)
    return ListedRun(name, summary.reward, summary.success, summary.interval, replace(info, facts=facts))


def _evaluations(runs: Sequence[RunInfo]) -> list[str]:
    try:
        results = [read_evaluation(path) for path in evaluations_of(runs)]
        return [line for other in results[1:] for line in difference(compare(results[0], other))]
    except (ConfigError, ValueError, OSError):
        return []

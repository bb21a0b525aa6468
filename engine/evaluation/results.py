"""Read evaluations from their records, task by task, and compare two of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from urllib.parse import urlsplit

from ...configs.errors import GrpoTuiError
from ...configs.sections import EvaluationConfig
from ...configs.sections.model import ENDPOINT
from ..launch.find import list_runs
from ..launch.settings import read_config
from ..runs.read.reader import RunReader
from ..runs.types import RunInfo, TrajectoryRecord, TrajectoryRow
from .statistics import Interval, mean_interval, pass_at_k, pass_hat_k, rate_interval, sign_flip_p, tasks_needed

TASK = "task_number"
"""Column of an evaluation's rollouts: the task number, from 0."""
POINTS = (1, 3, 5)
"""A comparison states how many tasks would show each of these differences, in percentage points."""


class EvaluationError(GrpoTuiError, ValueError):
    """Evaluations cannot be read or compared. The message is one sentence."""

    exit_code = 2


@dataclass
class Task:
    """The samples of one task. numbers: the record's numbers of its rollouts."""

    prompt_id: str
    prompt: str
    numbers: list[int] = field(default_factory=list)
    right: list[bool | None] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    components: dict[str, list[float]] = field(default_factory=dict)
    cost: dict[str, list[float]] = field(default_factory=dict)
    """Turns, tokens and environment seconds of each sample."""

    @property
    def rate(self) -> float:
        return sum(map(bool, self.right)) / len(self.right)


@dataclass(frozen=True)
class Evaluation:
    """The results of one policy, by task number. Success is None if the reward is graded."""

    path: Path
    spec: EvaluationConfig
    tasks: Mapping[int, Task]

    @property
    def name(self) -> str:
        """The name of the policy as the user gave it; `NAME at HOST` for an endpoint."""
        subject = self.spec.subject or self.path.name
        if not subject.startswith(ENDPOINT):
            return subject
        url, _, name = subject.partition("@")
        return f"{name} at {urlsplit(url).netloc}"

    @cached_property
    def success(self) -> Interval | None:
        if not self.tasks or any(None in task.right for task in self.tasks.values()):
            return None
        return rate_interval([task.rate for task in self.tasks.values()])

    @cached_property
    def reward(self) -> Interval:
        return mean_interval([fmean(task.rewards) for task in self.tasks.values()])

    @cached_property
    def components(self) -> dict[str, Interval]:
        """Mean raw value of each reward component over tasks."""
        return self._means(lambda task: task.components)

    @cached_property
    def cost(self) -> dict[str, Interval]:
        """Mean turns, tokens and environment seconds over tasks."""
        return self._means(lambda task: task.cost)

    def pass_k(self, k: int) -> tuple[Interval, Interval] | None:
        """Return pass@k and pass^k over tasks; None if success is unknown or k exceeds the number of samples."""
        if self.success is None or k > self.spec.samples:
            return None
        counts = [(len(task.right), sum(map(bool, task.right))) for task in self.tasks.values()]
        return (
            rate_interval([pass_at_k(n, c, k) for n, c in counts]),
            rate_interval([pass_hat_k(n, c, k) for n, c in counts]),
        )

    def _means(self, values: Callable[[Task], Mapping[str, Sequence[float]]]) -> dict[str, Interval]:
        names = dict.fromkeys(name for task in self.tasks.values() for name in values(task))
        known = {name: [task for task in self.tasks.values() if name in values(task)] for name in names}
        return {name: mean_interval([fmean(values(t)[name]) for t in tasks]) for name, tasks in known.items()}


def read_evaluation(run_dir: Path) -> Evaluation:
    """Read the evaluation in a run's folder. Tasks with incomplete samples are left out.

    Raises RecordError, and EvaluationError for a run that is not an evaluation.
    """
    config = read_config(run_dir)
    if config.mode != "eval":
        raise EvaluationError(f"{run_dir} is a run of mode {config.mode}, not an evaluation")
    tasks: dict[int, Task] = {}
    with RunReader(run_dir) as reader:
        for (number, _), row in _rows(reader).items():
            task = tasks.setdefault(number, Task(row.prompt_id, row.prompt))
            _add(task, row, reader.bodies.trajectory(row.n))
    complete = {n: task for n, task in sorted(tasks.items()) if len(task.numbers) == config.evaluation.samples}
    return Evaluation(run_dir, config.evaluation, complete)


def _rows(reader: RunReader) -> dict[tuple[int, int], TrajectoryRow]:
    """Return the newest row of each sample by (task, sample). A task killed while recording is repeated."""
    rows = reader.rollouts.page(limit=max(1, reader.rollouts.total()))
    return {(int(row.extra.get(TASK, -1)), row.rollout): row for row in rows}


def _add(task: Task, row: TrajectoryRow, record: TrajectoryRecord) -> None:
    trajectory, breakdown = record.trajectory, record.breakdown
    task.numbers.append(row.n)
    graded = trajectory.correct is None and trajectory.judged_by
    reward = trajectory.own_reward or 0.0
    task.right.append(None if graded else reward > 0 if trajectory.correct is None else trajectory.correct)
    task.rewards.append(reward if breakdown is None or breakdown.total is None else breakdown.total)
    sums: dict[str, float] = {}
    for step in breakdown.steps if breakdown is not None else ():
        for name, component in step.components.items():
            sums[name] = sums.get(name, 0.0) + (component.raw or 0.0)
    for name, value in sums.items():
        task.components.setdefault(name, []).append(value)
    cost = {"turns": len(trajectory.steps), "tokens": row.tokens, "environment seconds": trajectory.seconds}
    for name, value in cost.items():
        if value is not None:
            task.cost.setdefault(name, []).append(float(value))


def evaluations_of(runs: Sequence[RunInfo]) -> list[Path]:
    """Return the newest evaluation of each run on the same tasks; empty if there are none. For a run that is itself an
    evaluation, return that run. Raises ConfigError.
    """
    if all(run.mode == "eval" for run in runs):
        return [Path(run.path) for run in runs]
    first, *others = map(_evaluations_of, runs)
    for path, tasks in first.items():
        found = [next((p for p, same in other.items() if same == tasks), None) for other in others]
        if None not in found:
            return [path, *(p for p in found if p is not None)]
    return []


def _evaluations_of(run: RunInfo) -> dict[Path, object]:
    """Return the finished evaluations of a run, newest first, with the settings that determine their tasks."""
    found = [run]
    if run.mode != "eval":
        finished = [r for r in list_runs(Path(run.path).parent) if r.mode == "eval" and r.status == "finished"]
        found = [r for r in finished if str(r.facts.get("subject")).partition("@")[0] == run.id]
        found.sort(key=lambda r: r.created, reverse=True)
    configs = {Path(r.path): read_config(Path(r.path)) for r in found}
    evaluated = {path: c for path, c in configs.items() if not c.evaluation.branch.run}
    return {path: (c.environment, c.data, c.seed) for path, c in evaluated.items()}


def finished_tasks(run_dir: Path, samples: int) -> set[int]:
    """Return the numbers of the tasks whose samples are all recorded."""
    with RunReader(run_dir) as reader:
        counts = Counter(number for number, _ in _rows(reader))
    return {number for number, count in counts.items() if count >= samples}


@dataclass(frozen=True)
class Difference:
    """A paired difference, second minus first. needed: the number of tasks that would show each of `POINTS`."""

    interval: Interval
    p: float
    needed: Mapping[int, int]


@dataclass(frozen=True)
class Comparison:
    """Two evaluations of the same tasks. The second solves `gained` tasks more often and `lost` tasks less often."""

    first: Evaluation
    second: Evaluation
    success: Difference | None
    reward: Difference
    components: Mapping[str, Difference]
    gained: Sequence[int]
    lost: Sequence[int]

    def shown(self, task: int) -> tuple[tuple[Evaluation, int], tuple[Evaluation, int]]:
        """Return both evaluations, each with a rollout of a gained or lost task that shows the change."""
        a, b = self.first.tasks[task], self.second.tasks[task]
        gained = b.rate > a.rate
        return (self.first, a.numbers[a.right.index(not gained)]), (self.second, b.numbers[b.right.index(gained)])


def compare(first: Evaluation, second: Evaluation) -> Comparison:
    """Compare two evaluations task by task. Raises EvaluationError if they are not on the same tasks."""
    shared = sorted(first.tasks.keys() & second.tasks.keys())
    if not shared:
        raise EvaluationError(f"{first.name} and {second.name} have no task in common")
    other = [n for n in shared if first.tasks[n].prompt_id != second.tasks[n].prompt_id]
    if other:
        raise EvaluationError(
            f"{first.name} and {second.name} were evaluated on different tasks (task {other[0]} differs): use one "
            "configuration, or --dataset, for both"
        )
    pairs = [(first.tasks[n], second.tasks[n]) for n in shared]
    rates = None
    if first.success is not None and second.success is not None:
        unit = 1 / math.lcm(first.spec.samples, second.spec.samples)
        rates = _difference([b.rate - a.rate for a, b in pairs], unit)
    both = {n: [(a, b) for a, b in pairs if n in a.components and n in b.components] for n in first.components}
    return Comparison(
        first,
        second,
        rates,
        _difference([fmean(b.rewards) - fmean(a.rewards) for a, b in pairs]),
        {
            name: _difference([fmean(b.components[name]) - fmean(a.components[name]) for a, b in known])
            for name, known in both.items()
            if known
        },
        [n for n, (a, b) in zip(shared, pairs, strict=True) if rates is not None and b.rate > a.rate],
        [n for n, (a, b) in zip(shared, pairs, strict=True) if rates is not None and b.rate < a.rate],
    )


def _difference(values: Sequence[float], unit: float | None = None) -> Difference:
    spread = stdev(values) if len(values) > 1 else 0.0
    needed = {points: tasks_needed(spread, points / 100) for points in POINTS} if spread > 0 else {}
    return Difference(mean_interval(values), sign_flip_p(values, unit), needed)

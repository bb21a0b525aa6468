"""The value of a recorded step, from continuations before and after it that `engine.training.branch` samples."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean

from ...configs.errors import count
from ...configs.schema import RunConfig
from ...configs.sections import BranchConfig, EvaluationConfig, RolloutsConfig
from ..launch.find import find_run
from ..launch.settings import read_config
from ..launch.start import start_run
from ..runs.control.status import look
from ..runs.health.checkpoints import checkpoint_folder, policies
from ..runs.paths import adapters_dir
from ..runs.read.reader import RunReader
from ..runs.types import RunInfo, Split, TrajectoryRecord, TrajectoryRow
from .results import EvaluationError
from .statistics import Interval, bounded_interval, difference_interval, rate_interval
from .subjects import BASE, Subject, find_subject

SIDE = "branch"
"""Column of a continuation: `before` if the policy wrote the step again, `after` if it continued from the step."""
PLACE = "sample"
"""Column of a continuation: its number on its side, from 1."""
DIFFERS = "differs"
"""Column of a continuation: the first turn whose observation differs from the record (0: the prompt), if any."""
REPLAY = "replay"
"""Name of the event with the first difference. Its data: `turn` (0: the prompt), `recorded`, `now`."""
SAMPLES = 16


def branch_config(
    run_dir: Path, rollout: str | int, step: int, *, token: int | None = None, samples: int = SAMPLES, policy: str = ""
) -> RunConfig:
    """Return the configuration of a branch at a step (from 1). token: keep only this many of the step's tokens.

    policy: see `find_subject`. Empty: the saved policy nearest to the one that sampled the rollout. Raises
    EvaluationError, RunNotFound, RecordError, LookupError, ConfigError.
    """
    info = look(run_dir)
    if info.mode not in ("rft", "eval", "play"):
        modes = {"online": "answered requests", "sft": "imitated demonstrations"}
        raise EvaluationError(
            f"{info.id} {modes.get(info.mode, 'comes from another program')}: there is no environment to replay it in"
        )
    with RunReader(run_dir) as reader:
        n = reader.bodies.number(rollout)
        record, (row,) = reader.bodies.trajectory(n), reader.rollouts.rows([n])
    steps = record.trajectory.steps
    if not 1 <= step <= len(steps):
        raise EvaluationError(f"rollout {n} of {info.id} has {count(len(steps), 'step')}, and no step {step}")
    if row.split not in (Split.TRAIN, Split.EVAL):
        raise EvaluationError(
            f"rollout {n} of {info.id} belongs to {row.split}: only training and evaluation rollouts can be replayed"
        )
    source = read_config(run_dir)
    version = _version(record, row, step)
    subject = find_subject(policy, run_dir.parent) if policy else _nearest(run_dir, source, version)
    if subject.evaluation is not None:
        subject = _evaluated(read_config(subject.evaluation), subject.name)
    sampled = source.mode == "eval" and source.evaluation.temperature > 0
    changed: dict[str, object] = {
        "mode": "eval",
        "name": "",
        "rollouts": RolloutsConfig(),  # this process samples, even if the run used servers
        "evaluation": EvaluationConfig(
            subject=subject.name,
            step=subject.step,
            samples=samples,
            temperature=(source.evaluation if sampled else source.training).temperature,
            branch=BranchConfig(run=str(run_dir.absolute()), rollout=n, step=step, token=token),
        ),
    }
    config = subject.configure(source).model_copy(update=changed)
    if config.model.is_endpoint:
        raise EvaluationError(f"{subject.name} is an endpoint: a branch needs the weights of its policy")
    return config


def _nearest(run_dir: Path, config: RunConfig, version: int) -> Subject:
    if config.mode == "eval":
        return _evaluated(config, config.evaluation.subject)
    kept = policies(checkpoint_folder(run_dir))
    step = min({0, *kept}, key=lambda s: (abs(s - version), s))
    subject = f"{run_dir}@{step or BASE}"
    if adapters_dir(config.training.output_dir, run_dir.name).is_dir():
        last = look(run_dir).step
        if abs(last - version) < abs(step - version):
            step, subject = last, str(run_dir)
    return replace(find_subject(subject, run_dir.parent), name=f"{run_dir.name}@{step or BASE}")


def _evaluated(config: RunConfig, name: str) -> Subject:
    return Subject(name, config, step=config.evaluation.step)


def start_branch(config: RunConfig) -> RunInfo:
    """Start a branch next to its run. If the branch exists, resume it if it was stopped, else return it.

    Raises LaunchError.
    """
    from ...configs.writing import to_yaml

    branch = config.evaluation.branch
    source = Path(branch.run)
    digest = hashlib.sha256(to_yaml(config).encode()).hexdigest()[:8]
    folder = source.parent / f"branch-{source.name[-30:]}-{branch.rollout}-{branch.step}-{digest}"
    if not folder.exists():
        return start_run(config, runs_dir=folder.parent, run_id=folder.name)
    run = find_run(folder.parent, str(folder))
    if run.active or run.status == "finished":
        return run
    return start_run(read_config(folder), runs_dir=folder.parent, resume=str(folder))


@lru_cache(maxsize=8)
def _recorded(run: str, rollout: int) -> tuple[TrajectoryRecord, TrajectoryRow, float, float]:
    """Return a rollout, its row, and the lowest and highest reward of its run."""
    with RunReader(run) as reader:
        record, (row,) = reader.bodies.trajectory(rollout), reader.rollouts.rows([rollout])
        ((low, high, _),) = reader.rollouts.histogram(bins=1) or [(0.0, 0.0, 0)]
    return record, row, low, high


def _version(record: TrajectoryRecord, row: TrajectoryRow, step: int) -> int:
    known = (record.trajectory.steps[step - 1].policy_version, record.policy_version, row.step)
    return next((version for version in known if version is not None), 0)


@dataclass(frozen=True)
class Side:
    """The continuations on one side of the step. reward, success: over the continuations that count (`side_of`);
    success is None if it is unknown. differing: how many saw an observation that differs from the record."""

    rows: Sequence[TrajectoryRow]
    reward: Interval
    success: Interval | None
    differing: int


@dataclass(frozen=True)
class Branch:
    """The continuations so far. version: the version of the policy that sampled the rollout.

    worth: value after the step minus value before it. advantage: the step's advantage in training, if any. replay: the
    first difference from the record (`REPLAY`).
    """

    spec: EvaluationConfig
    version: int
    before: Side
    after: Side
    worth: Interval
    advantage: float | None
    replay: dict[str, object] | None


def read_branch(reader: RunReader, spec: EvaluationConfig) -> Branch:
    """Read the branch in a record. Raises RecordError."""
    source = spec.branch
    record, row, low, high = _recorded(source.run, source.rollout)
    rows = reader.rollouts.page(limit=max(1, reader.rollouts.total()))
    events = reader.events(["phase"])
    values = record.step_advantages
    before, after = (
        side_of([r for r in rows if r.extra.get(SIDE) == side], source.step, low, high) for side in ("before", "after")
    )
    return Branch(
        spec,
        _version(record, row, source.step),
        before,
        after,
        difference_interval(before.reward, after.reward),
        values[source.step - 1] if source.step <= len(values) else record.advantage,
        next((dict(e.data) for e in events if e.data.get("name") == REPLAY), None),
    )


def side_of(rows: Sequence[TrajectoryRow], step: int, low: float, high: float) -> Side:
    """Return one side of a branch. Rollouts in which the environment failed do not count.

    If the replay of some rollouts equals the record, only those count: they are samples from the recorded situation.
    low, high: the range of rewards.
    """
    complete = [r for r in rows if r.reward is not None and r.stop_reason not in ("error", "timeout")]
    same = [r for r in complete if r.extra.get(DIFFERS) is None] or complete
    rewards = [r.reward for r in same if r.reward is not None]
    right = [None if r.correct is None else float(r.correct) for r in same]
    rates = [r for r in right if r is not None]
    if all(r.turns == step and r.extra[SIDE] == "after" for r in same) and len(set(rewards)) == 1:
        reward, success = _exactly(rewards), _exactly(rates)  # the step ended the rollout
    else:
        reward, success = bounded_interval(rewards, low, high), rate_interval(rates)
    known = bool(rates) and None not in right
    return Side(rows, reward, success if known else None, sum(r.extra.get(DIFFERS) is not None for r in rows))


def _exactly(values: Sequence[float]) -> Interval:
    value = fmean(values) if values else math.nan
    return Interval(value, value, value, len(values))

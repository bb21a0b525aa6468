"""Turns dataset rows into rollouts: group by environment, run each group's trial, merge in the order of the batch.

Rows are grouped by (`env_class_path`, canonical `env_config`). Each pair is instantiated once and kept in `env_cache`.
`env.run_trial` runs once per group.
"""

from __future__ import annotations

import inspect
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

from ...configs.errors import GrpoTuiError
from ...configs.sections.environment import EnvironmentConfig
from ...envs.agent import Agent
from ...envs.base import ImageStore
from ...envs.loading import EnvLoadError, canonical_config, make_env
from ...envs.multi_turn import MultiTurnEnv
from ...envs.seeds import seed_of
from ...envs.spans import Spans
from .rollout import Rollout, in_batch_order
from .trial import TrialError, rollouts_from_trial

if TYPE_CHECKING:  # reading rows does not need it
    from transformers import PreTrainedTokenizerBase

EnvKey = tuple[str, str]
_OPTIONAL = frozenset({"seed", "step", "split", "on_progress", "on_group", "fresh"})
"""Keywords of `run_trial` beyond the contract's three."""


@dataclass(frozen=True)
class Row:
    """One task of the dataset: the environment, its configuration, and the task itself."""

    env_class_path: str
    env_config: Mapping[str, object]
    task_data: Mapping[str, Any]

    @cached_property
    def key(self) -> EnvKey:
        """A key that is equal for rows that the same environment instance can serve."""
        return self.env_class_path, canonical_config(self.env_config)


class DataError(GrpoTuiError, ValueError):
    """The data cannot be used. The message is one sentence that names the row, if any, and a correction."""


def parse_row(raw: Mapping[str, object] | Row, where: str = "row") -> Row:
    """Read `env_class_path`, `env_config` and `task_data` of one dataset row.

    The last two may be mappings or JSON text. A table that mixes environments must hold them as text, or every row gets
    the keys of all others, as None. Those are dropped. Raises DataError.
    """
    if isinstance(raw, Row):
        return raw
    path = raw.get("env_class_path")
    if not isinstance(path, str) or not path.strip():
        raise DataError(f'{where}: env_class_path must be text such as "package.module.Class", not {path!r}')
    parts: dict[str, Mapping[str, object]] = {}
    for key in ("env_config", "task_data"):
        given = raw.get(key)
        value = {} if given is None and key == "env_config" else given
        try:
            if isinstance(given, str):
                value = json.loads(given)
            if key == "task_data":
                value = _finite(value, where)
            if isinstance(given, Mapping) and isinstance(value, Mapping):
                value = {k: v for k, v in value.items() if v is not None}
        except json.JSONDecodeError as problem:
            raise DataError(f"{where}: {key} is text but not JSON ({problem})") from problem
        except RecursionError as problem:
            raise DataError(f"{where}: {key} is nested too deeply") from problem
        if not isinstance(value, Mapping):
            raise DataError(f"{where}: {key} must be a mapping, not {value!r}")
        parts[key] = value
    try:
        canonical_config(parts["env_config"])
    except EnvLoadError as problem:
        raise DataError(f"{where}: {problem}") from problem
    return Row(path, parts["env_config"], parts["task_data"])


def _finite(value: Any, where: str) -> Any:
    """Return data as JSON can hold it: NaN, which marks a missing value in tables, becomes None. Raises DataError."""
    if isinstance(value, Mapping):
        return {k: _finite(v, where) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v, where) for v in value]
    if isinstance(value, float) and math.isinf(value):
        raise DataError(f"{where}: task_data contains {value}, which is no number of JSON: give a finite one, or text")
    return None if isinstance(value, float) and math.isnan(value) else value


@dataclass
class TrialTimings:
    """Seconds of the last call of `run` by phase, and its time spans, for environments that report them."""

    generate: float = 0.0
    environment: float = 0.0
    spans: Spans = field(default_factory=Spans)


class TrialEnv(Protocol):
    """An environment that runs trials: a `MultiTurnEnv`, or any class of the user's."""

    @property
    def run_trial(self) -> Callable[..., Mapping[str, Any]]:
        """See `MultiTurnEnv.run_trial`. It gets those of the keywords `_OPTIONAL` that it accepts."""
        ...


class RolloutWatch(Protocol):
    """Follows rollouts while they are made. One thread makes all calls of a trial."""

    def begins(self, split: str, step: int, turns: int, total: int) -> None:
        """Report the start of a trial. turns: limit of a rollout (0: not known). total: rollouts of the whole call."""
        ...

    def ended(self, count: int) -> None:
        """Report that `count` more rollouts of the trial have ended."""
        ...

    def made(self, rollouts: Sequence[Rollout]) -> None:
        """Receive the judged rollouts of the trial."""
        ...


def prepares(config: EnvironmentConfig, images: ImageStore) -> Callable[[TrialEnv], None]:
    """Return a function that prepares a new environment: its pictures go to `images`, and its turns get the configured
    time limit unless its own options set one. An environment that is no `MultiTurnEnv` may lack both."""

    def prepare(env: Any) -> None:
        if hasattr(env, "image_store"):
            env.image_store = images
        if hasattr(env, "turn_timeout_s") and "turn_timeout_s" not in config.config:
            env.turn_timeout_s = config.turn_timeout_s

    return prepare


@dataclass
class RolloutRunner:
    """Runs trials of rows with one agent. `prepare(env)` is called once for each new environment.

    `on_progress(ended, total)` receives the number of rollouts of a call. `watch` follows each trial.
    `judge(rollouts, rows, steps)` returns finished rollouts with the scores of reward functions (`judging.Judge`).
    `fresh`: how many rollouts of a training prompt start at it; the others branch from these (`envs.tree`; None: none).

    `env_cache` maps (class path, canonical config) to the instance.
    """

    agent: Agent
    tokenizer: PreTrainedTokenizerBase | None
    num_rollouts: int
    env_cache: dict[EnvKey, TrialEnv] = field(default_factory=dict)
    prepare: Callable[[TrialEnv], None] | None = None
    timings: TrialTimings = field(default_factory=TrialTimings)
    on_progress: Callable[[int, int], None] | None = None
    watch: RolloutWatch | None = None
    judge: Callable[[Sequence[Rollout], Sequence[Row], int], list[Rollout]] | None = None
    fresh: int | None = None

    def beside(self) -> RolloutRunner:
        """Return a runner for concurrent use, with its own environments and no progress reports."""
        return replace(self, env_cache={}, on_progress=None)

    def environment(self, row: Row) -> TrialEnv:
        """Return the instance that serves `row`, creating it on first use. Raises EnvLoadError."""
        if row.key not in self.env_cache:
            env = cast(TrialEnv, make_env(row.env_class_path, row.env_config, self.tokenizer))
            if self.prepare is not None:
                self.prepare(env)
            self.env_cache[row.key] = env
        return self.env_cache[row.key]

    def run(
        self,
        rows: Sequence[Row],
        *,
        first: int = 0,
        every: int = 1,
        seed: int | None = None,
        step: int = 0,
        split: str = "train",
        num_rollouts: int | None = None,
        policy_version: int = 0,
        on_group: Callable[[list[Rollout]], None] | None = None,
    ) -> list[Rollout]:
        """Return rollouts of `rows`, in order: row i gives `num_rollouts` rollouts with `group == first + i * every`.

        `seed` makes the trials repeatable. Each row's seed is derived from it and the row's group, so its rollouts
        do not depend on the process or on other rows. (A class whose `run_trial` takes one number gets that of the
        first row.) `on_group` receives the rollouts of each row once they are made, on any thread.
        Raises EnvLoadError, TrialError, and whatever the agent raises.
        """
        rollouts, self.timings = num_rollouts or self.num_rollouts, TrialTimings()
        groups: dict[EnvKey, list[int]] = {}
        for index, row in enumerate(rows):
            groups.setdefault(row.key, []).append(index)
        done: list[Rollout] = []
        ended, total = 0, len(rows) * rollouts
        self._tell(0, total)
        for indices in groups.values():
            env = self.environment(rows[indices[0]])
            numbers = [first + i * every for i in indices]
            arguments = {
                "seed": None if seed is None else _seeds(type(env), [seed_of(seed, n) for n in numbers]),
                "step": step,
                "split": split,
                "on_progress": lambda n, _, before=ended: self._tell(before + n, total, n),
            } | ({"fresh": self.fresh} if self.fresh is not None and split == "train" else {})
            if self.watch is not None:
                self.watch.begins(split, step, int(getattr(env, "max_turns", 0) or 0), total)
            trial_rows = [rows[i] for i in indices]
            trial_rollouts = self._trial(env, trial_rows, numbers, rollouts, policy_version, arguments, on_group)
            if self.watch is not None:
                self.watch.made(trial_rollouts)
            done += trial_rollouts
            ended += len(trial_rollouts)
            self._tell(ended, total)
        return in_batch_order(done)

    def _trial(
        self,
        env: TrialEnv,
        rows: Sequence[Row],
        numbers: Sequence[int],
        rollouts: int,
        policy_version: int,
        arguments: Mapping[str, Any],
        on_group: Callable[[list[Rollout]], None] | None,
    ) -> list[Rollout]:
        """Return the judged rollouts of one call of `run_trial`, in the order of the rows. numbers: the group of each
        row. arguments: optional keywords."""
        path, made = rows[0].env_class_path, dict[int, list[Rollout]]()

        def take(places: Sequence[int], result: Mapping[str, Any]) -> None:
            """Convert, judge and keep the result of the rows at these indices."""
            try:
                found = rollouts_from_trial(result, [numbers[p] for p in places], rollouts, policy_version)
            except TrialError as problem:
                raise TrialError(f"{path}: {problem}") from problem
            if self.judge is not None:
                started = time.perf_counter()
                finished = arguments["step"] - (arguments["split"] == "train")
                found = self.judge(found, [rows[p] for p in places for _ in range(rollouts)], finished)
                self.timings.environment += time.perf_counter() - started
            for number, place in enumerate(places):
                made[place] = found[number * rollouts : (number + 1) * rollouts]
                if on_group is not None:
                    on_group(made[place])

        if on_group is not None:
            arguments = {**arguments, "on_group": lambda place, result: take([place], result)}
        accepted = _accepted(type(env))
        if "fresh" in arguments and "fresh" not in accepted:
            raise TrialError(f"{path} has its own run_trial, which cannot branch (training.advantages: tree)")
        result = env.run_trial(
            task_data_list=[row.task_data for row in rows],
            agent=self.agent,
            num_rollouts=rollouts,
            **{k: v for k, v in arguments.items() if k in accepted},
        )
        if not made:
            take(range(len(rows)), result)
        spent = result.get("timings") or {}
        self.timings.generate += float(spent.get("generate_s", 0.0))
        self.timings.environment += float(spent.get("environment_s", 0.0))
        self.timings.spans.extend(spent.get("spans") or {})
        return [rollout for place in sorted(made) for rollout in made[place]]

    def _tell(self, ended: int, total: int, in_trial: int = 0) -> None:
        if self.watch is not None and in_trial:
            self.watch.ended(in_trial)
        if self.on_progress is not None:
            self.on_progress(ended, total)


def _seeds(env_class: type, seeds: list[int]) -> list[int] | int:
    """Return a seed for each task if the class uses this package's `run_trial`, else only the first."""
    return seeds if env_class.run_trial is MultiTurnEnv.run_trial else seeds[0] % 2**31


def _accepted(env_class: type) -> frozenset[str]:
    """Return the optional keywords that this class's `run_trial` takes. A user's class may take none."""
    parameters = inspect.signature(env_class.run_trial).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return _OPTIONAL
    return _OPTIONAL & {p.name for p in parameters}

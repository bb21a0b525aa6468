"""Scores rollouts by the user's reward functions (`rewards.functions`), on the last step of each.

Training and evaluation both judge rollouts as part of making them: each process judges its own.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from transformers import PreTrainedTokenizerBase

from ...configs import metric_names as metric
from ...configs.sections import EnvironmentConfig
from ...envs.trajectory import Trajectory
from ...rewards.functions import Completions, Conversation, Prompt, RewardFunctions
from .rollout import Rollout
from .runner import Row

STATE = "judge.json"


def special_texts(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Return the texts that decoding with `skip_special_tokens` leaves out."""
    added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    return tuple(dict.fromkeys([*tokenizer.all_special_tokens, *added]))


def make_judge(config: EnvironmentConfig, rows: Sequence[Row], special_tokens: Sequence[str] = ()) -> Judge | None:
    """Load the reward functions that `config` names and check them against `rows`; None without any.

    special_tokens: the tokenizer's, removed from the completions that functions see, as in TRL.
    Raises RewardFunctionError.
    """
    if not config.reward_funcs:
        return None
    functions = RewardFunctions.load(config.reward_funcs, config.reward_errors)
    for columns in {tuple(_columns(row.task_data)) for row in rows}:
        functions.check_columns(columns)
    if not all(row.task_data.get("plain") for row in rows):
        functions.check_templates()
    return Judge(functions, config.success_score, tuple(special_tokens))


@dataclass(frozen=True)
class Judge:
    """The reward functions of a run. success_score: the lowest score of the first function at which an answer counts as
    right, if the environment does not know. None: 1, until that function returns a score other than 0 and 1. Such a
    graded reward has no success. special_tokens: texts removed from completions."""

    functions: RewardFunctions
    success_score: float | None = None
    special_tokens: tuple[str, ...] = ()
    state: Callable[[], object | None] = lambda: None
    """The trainer's current state, which functions get as `trainer_state`."""
    logged: dict[str, list[float]] = field(default_factory=dict, compare=False)
    """Numbers that functions logged (`log_metric`) since `take_metrics`."""
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock, compare=False)

    _graded: threading.Event = field(default_factory=threading.Event, compare=False)

    def take_metrics(self, prefix: str = "") -> dict[str, float]:
        """Return means of the numbers that functions logged since the last call, by TRL's names."""
        with self._one_at_a_time:
            means = {metric.TRL(f"{prefix}{name}"): fmean(values) for name, values in self.logged.items()}
            self.logged.clear()
        return means

    def save(self, folder: Path) -> None:
        """Save whether the reward is graded."""
        (folder / STATE).write_text(json.dumps(self._graded.is_set()))

    def load(self, folder: Path) -> None:
        """Load what `save` wrote. Raises OSError."""
        if json.loads((folder / STATE).read_text()):
            self._graded.set()

    def __call__(self, rollouts: Sequence[Rollout], rows: Sequence[Row], step: int = 0) -> list[Rollout]:
        """Return the rollouts with scores; none for those that failed in the environment.

        rows: the row of each. step: the number of finished optimiser steps, as in TRL. Raises RewardFunctionError.
        """
        judged_rows = [
            i for i, r in enumerate(rollouts) if (t := r.trajectory) is not None and t.steps and not t.failed
        ]
        completions = completions_of(
            [rollouts[i] for i in judged_rows], [rows[i] for i in judged_rows], step, self.special_tokens
        )
        if (state := copy.copy(self.state())) is not None:
            state.global_step = step  # type: ignore[attr-defined] - rollouts may be made ahead
            completions = replace(completions, state=state)
        with self._one_at_a_time:  # user functions may not be thread-safe
            scores = self.functions.score(completions)
            for name, value in scores.metrics.items():
                self.logged.setdefault(name, []).append(value)
        first = self.functions.functions[0].name if self.functions.functions else ""
        if self.success_score is None and any(
            row_scores and row_scores[0].value not in (None, 0, 1) for row_scores in scores.by_row
        ):
            self._graded.set()
        done = list(rollouts)
        for number, i in enumerate(judged_rows):
            trajectory = rollouts[i].trajectory
            assert trajectory is not None
            row_scores = scores.by_row[number]
            *before, last = trajectory.steps
            changed = replace(
                trajectory,
                steps=(*before, replace(last, scores=(*last.scores, *row_scores))),
                extra={**trajectory.extra, **{name: values[number] for name, values in scores.extra.items()}},
            )
            if trajectory.correct is None and row_scores:
                value, threshold = row_scores[0].value, 1.0 if self.success_score is None else self.success_score
                correct = None if value is None or self._graded.is_set() else value >= threshold
                changed = replace(changed, correct=correct, judged_by=first)
            done[i] = replace(rollouts[i], trajectory=changed)
        return done


def completions_of(
    rollouts: Sequence[Rollout], rows: Sequence[Row], step: int = 0, special_tokens: Sequence[str] = ()
) -> Completions:
    """Return these rollouts as reward functions receive them."""
    names = dict.fromkeys(name for row in rows for name in _columns(row.task_data))
    columns = {name: [_columns(row.task_data).get(name) for row in rows] for name in names}
    prompts: list[Prompt] = []
    completions: list[Prompt] = []
    for rollout, row in zip(rollouts, rows, strict=True):
        trajectory = rollout.trajectory
        assert trajectory is not None
        plain = bool(row.task_data.get("plain"))
        prompts.append(trajectory.prompt if plain else prompt_messages(trajectory))
        trajectory = _without(trajectory, special_tokens)
        completions.append(trajectory.steps[-1].text if plain else completion_messages(trajectory))
    return Completions(
        prompts,
        completions,
        [r.token_ids[r.prompt_length :].tolist() for r in rollouts],
        columns,
        [
            f"row {row.task_data['row']} of the data" if "row" in row.task_data else f"task {i + 1}"
            for i, row in enumerate(rows)
        ],
        step,
    )


def prompt_messages(trajectory: Trajectory) -> Conversation:
    """Return the prompt as messages."""
    if trajectory.messages:
        return [{"role": message.role, "content": message.text} for message in trajectory.messages]
    return [{"role": "user", "content": trajectory.prompt}]


def completion_messages(trajectory: Trajectory) -> Conversation:
    """Return the completion as messages: the agent's turns, its tool calls, and their results."""
    names = {tool.name for tool in trajectory.tools if not tool.final}
    messages: Conversation = []
    for step in trajectory.steps:
        message: dict[str, object] = {"role": "assistant", "content": step.text}
        called = step.action is not None and step.action in names
        if called:
            message["content"] = step.thought
            message["tool_calls"] = [
                {"type": "function", "function": {"name": step.action, "arguments": dict(step.arguments)}}
            ]
        messages.append(message)
        if step is not trajectory.steps[-1]:
            role = {"role": "tool", "name": step.action} if called else {"role": "user"}
            messages.append({**role, "content": step.observation})
    return messages


def _without(trajectory: Trajectory, special_tokens: Sequence[str]) -> Trajectory:
    def plain(text: str) -> str:
        for token in special_tokens:
            text = text.replace(token, "")
        return text

    steps = tuple(replace(s, text=plain(s.text), thought=plain(s.thought)) for s in trajectory.steps)
    return replace(trajectory, steps=steps)


def _columns(task: Mapping[str, object]) -> Mapping[str, object]:
    """Return the columns of a dataset's row, or the keys of another environment's task."""
    columns = task.get("columns")
    return columns if isinstance(columns, Mapping) else task

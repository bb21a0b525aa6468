"""Sources for a TRL trainer's rollouts: batches with tensors, calls of reward functions, and parquet files."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpo_tui.engine.imports.containers.parquet import Parquet
from grpo_tui.engine.imports.format import Origin
from grpo_tui.engine.imports.formats.trl import TRL
from grpo_tui.engine.imports.messages import completion, conversation
from grpo_tui.engine.imports.rollout import Rollout, Score

TENSORS = (
    "prompt_ids",
    "prompt_mask",
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "old_per_token_logps",
    "sampling_per_token_logps",
    "ref_per_token_logps",
)
"""Tensors read from a batch: left-padded prompts [B, P], right-padded completions [B, T]."""


@dataclass(frozen=True)
class Rows:
    """One process's rows of a batch. first: the number of earlier rows of this step and split. ends: the tokens that
    end a completion."""

    prompts: list[object]
    completions: list[object]
    rewards: dict[str, list[float]]
    weights: dict[str, float]
    advantages: list[float]
    extra: dict[str, list[object]]
    tensors: Mapping[str, Any]
    first: int
    group_size: int
    step: int
    split: str
    ends: frozenset[int]

    def rollouts(self) -> list[Rollout]:
        return [self._rollout(i) for i in range(len(self.prompts))]

    def _stop(self, i: int) -> str:
        """Return `length` for a completion that a limit cut: without an end token, or masked as a whole."""
        if "completion_ids" not in self.tensors:
            return ""
        last = self.tensors["completion_ids"][i][self.tensors["completion_mask"][i].bool()].tolist()[-1:]
        return "" if self.ends.intersection(last) else "length"

    def ids(self) -> list[str]:
        return [f"{self.split}-{self.step}-{self.first + i}" for i in range(len(self.prompts))]

    def _rollout(self, i: int) -> Rollout:
        values = {name: _value(column[i]) for name, column in self.rewards.items()}
        known = {n: v for n, v in values.items() if v is not None}
        group, index = divmod(self.first + i, self.group_size)
        return Rollout(
            prompt=conversation(self.prompts[i]),
            completion=completion(self.completions[i]),
            id=f"{self.split}-{self.step}-{self.first + i}",
            step=self.step,
            group=str(group),
            index=index,
            split=self.split,
            stop=self._stop(i),
            reward=sum(self.weights[n] * v for n, v in known.items()) if known else None,
            components={n: Score(v, self.weights[n]) for n, v in values.items()},
            advantage=float(self.advantages[i]),
            extra={name: column[i] for name, column in self.extra.items()},
            tokens=(lambda: _tokens(self.tensors, i)) if "completion_ids" in self.tensors else None,
        )


def _value(number: Any) -> float | None:
    """Return the value of a reward function. TRL writes NaN where the function returned None (no value)."""
    return None if number is None or math.isnan(number) else float(number)


def _tokens(tensors: Mapping[str, Any], i: int) -> Any:
    import numpy as np

    from grpo_tui.engine.runs.types import TokenArrays

    prompt = tensors["prompt_ids"][i][tensors["prompt_mask"][i].bool()].numpy()
    valid = tensors["completion_mask"][i].bool().numpy()  # includes tool results, but no padding
    agent = (valid & tensors["tool_mask"][i].bool().numpy())[valid] if "tool_mask" in tensors else valid[valid]
    ids = np.concatenate([prompt, tensors["completion_ids"][i].numpy()[valid]]).astype(np.int32)
    mask = np.concatenate([np.zeros(len(prompt), bool), agent])
    logprobs = np.zeros(len(ids), np.float32)
    source = tensors.get("sampling_per_token_logps", tensors.get("old_per_token_logps"))
    if source is not None:
        logprobs[len(prompt) :] = np.where(agent, source[i].float().numpy()[valid], 0.0)
    turn = np.full(len(ids), -1, np.int16)
    starts = np.diff(np.concatenate([[0], agent.astype(np.int8)])) == 1
    turn[len(prompt) :] = np.maximum(np.cumsum(starts) - 1, -1)
    overlays = {}
    for name, key in (("trainer", "old_per_token_logps"), ("reference", "ref_per_token_logps")):
        if key in tensors and tensors[key] is not source:
            overlays[name] = np.full(len(ids), np.nan, np.float32)
            overlays[name][len(prompt) :] = np.where(agent, tensors[key][i].float().numpy()[valid], np.nan)
    return TokenArrays(token_ids=ids, agent_mask=mask, logprobs=logprobs, turn=turn, overlays=overlays)


class RewardCalls:
    """Reads rollouts from calls of the reward functions, without advantages and tokens.

    TRL calls all functions with the same list of completions. A batch is recorded when the next one begins or when the
    step ends.
    """

    def __init__(self, attached: Any, names: list[str], weights: Mapping[str, float]) -> None:
        self.attached = attached
        self.names = names
        self.weights = weights
        self._position = (1, "train")
        self._batch: Mapping[str, Any] = {}
        self._values: dict[str, list[float | None]] = {}

    def wrap(self, functions: list[Any]) -> None:
        """Replace plain functions with wrappers. Reward models stay."""
        for index, (name, function) in enumerate(zip(self.names, functions, strict=True)):
            if is_function(function):
                functions[index] = self._wrapped(name, function)

    def flush(self) -> None:
        batch, values = self._batch, self._values
        self._batch, self._values = {}, {}
        if batch and values:
            step, split = self._position
            rollouts = self._rollouts(batch, values, step, split)
            self.attached.recorded += len(rollouts)
            self.attached.recorder.rollouts(step, rollouts)

    def _wrapped(self, name: str, function: Callable[..., object]) -> Callable[..., object]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def asked_later(*args: object, **kwargs: object) -> object:
                values = await function(*args, **kwargs)
                self._take(name, kwargs, values)
                return values

            return asked_later

        @functools.wraps(function)
        def asked(*args: object, **kwargs: object) -> Any:
            values = function(*args, **kwargs)
            self._take(name, kwargs, values)
            return values

        return asked

    def _take(self, name: str, arguments: Mapping[str, object], values: Any) -> None:
        if self.attached.source != "rewards":  # another source has taken over
            return
        try:
            if arguments.get("completions") is not self._batch.get("completions"):
                self.flush()
                self._position = self.attached.position()
                self._batch = {k: arguments[k] for k in ("prompts", "completions")}
            self._values[name] = [None if v is None else float(v) for v in values]
        except Exception as error:
            self.attached.failed(error)

    def _rollouts(
        self, batch: Mapping[str, Any], values: Mapping[str, list[float | None]], step: int, split: str
    ) -> list[Rollout]:
        rollouts = []
        complete = len(values) == len(self.names)  # if a reward model's value is missing, the total is unknown
        for i, (prompt, answer) in enumerate(zip(batch["prompts"], batch["completions"], strict=True)):
            scores = {name: Score(column[i], self.weights.get(name)) for name, column in values.items()}
            known = [s.value * s.weight for s in scores.values() if s.value is not None and s.weight is not None]
            rollouts.append(
                Rollout(
                    prompt=conversation(prompt),
                    completion=completion(answer),
                    step=step,
                    split=split,
                    reward=sum(known) if complete and known else None,
                    components=scores,
                )
            )
        return rollouts


class ParquetFiles:
    """Reads rollouts from the files of `log_completions=True`, which hold the last batch before each log."""

    def __init__(self, attached: Any, folder: Path) -> None:
        self.attached = attached
        self.folder = folder
        self.seen = set(folder.glob("*.parquet"))

    def look(self) -> None:
        """Record new files. TRL finishes writing them before training continues."""
        for path in sorted(set(self.folder.glob("*.parquet")) - self.seen):
            self.seen.add(path)
            rows = [found.document for found in Parquet().open(path)]
            origin = Origin(path, self.folder)
            rollouts = [r for row in rows for r in TRL.open(row, origin) if isinstance(r, Rollout)]
            for step in sorted({r.step or 0 for r in rollouts}):
                self.attached.recorder.rollouts(step, [replace(r, id="") for r in rollouts if (r.step or 0) == step])
            self.attached.recorded += len(rollouts)


def is_function(function: object) -> bool:
    """Return whether a reward function is a plain function, not a model."""
    return callable(function) and not hasattr(function, "parameters")

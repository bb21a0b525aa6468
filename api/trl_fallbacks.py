"""Ways to see the rollouts of a TRL trainer whose `_generate_and_score_completions` cannot be wrapped, less each."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from grpo_tui.engine.imports.containers.parquet import Parquet
from grpo_tui.engine.imports.errors import DumpError
from grpo_tui.engine.imports.format import Origin
from grpo_tui.engine.imports.formats.trl import TRL
from grpo_tui.engine.imports.messages import completion, conversation
from grpo_tui.engine.imports.rollout import Rollout, Score
from grpo_tui.recorder import Recorder

log = logging.getLogger(__name__)


class Reader(Protocol):
    """Where rollouts go, and what is generated now."""

    def recorded(self, rollouts: int) -> None:
        """Count rollouts."""
        ...

    @property
    def recorder(self) -> Recorder:
        """The record."""
        ...

    def position(self) -> tuple[int, str]:
        """Step and split."""
        ...


class RewardCalls:
    """What reward functions are asked and answer: texts and values, without advantages and tokens.

    TRL asks every function about a batch in turn, with the same list of completions; a batch is recorded when the next
    one begins, or its step ends.
    """

    def __init__(self, reader: Reader, names: list[str], weights: Mapping[str, float]) -> None:
        self.reader = reader
        self.names = names
        self.weights = weights
        self._position = (1, "train")
        self._batch: Mapping[str, Any] = {}
        self._values: dict[str, list[float | None]] = {}

    def wrap(self, functions: list[Any]) -> None:
        """Put each plain function's wrapper in its place; reward models are left as they are."""
        for at, (name, function) in enumerate(zip(self.names, functions, strict=True)):
            if is_function(function):
                functions[at] = self._wrapped(name, function)

    def flush(self) -> None:
        """Record the batch that is held."""
        batch, values = self._batch, self._values
        self._batch, self._values = {}, {}
        if batch and values:
            recorder, (step, split) = self.reader.recorder, self._position
            size = len(batch["completions"])
            self.reader.recorded(size)
            recorder.later(lambda: recorder.rollouts(step, self._rollouts(batch, values, step, split)), size)

    def _wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def asked_later(*args: Any, **kwargs: Any) -> Any:
                values = await function(*args, **kwargs)
                self._take(name, kwargs, values)
                return values

            return asked_later

        @functools.wraps(function)
        def asked(*args: Any, **kwargs: Any) -> Any:
            values = function(*args, **kwargs)
            self._take(name, kwargs, values)
            return values

        return asked

    def _take(self, name: str, asked: Mapping[str, Any], values: Any) -> None:
        try:
            if asked.get("completions") is not self._batch.get("completions"):
                self.flush()
                self._position = self.reader.position()
                self._batch = {k: asked[k] for k in ("prompts", "completions")}
            self._values[name] = [None if v is None else float(v) for v in values]
        except Exception as error:
            log.warning("grpo-tui could not read rewards (%s: %s); training goes on", type(error).__name__, error)

    def _rollouts(
        self, batch: Mapping[str, Any], values: Mapping[str, list[float | None]], step: int, split: str
    ) -> list[Rollout]:
        made = []
        whole = len(values) == len(self.names)  # a reward model's value is not seen: then no total is known
        for i, (asked, said) in enumerate(zip(batch["prompts"], batch["completions"], strict=True)):
            scores = {name: Score(column[i], self.weights.get(name)) for name, column in values.items()}
            known = [s.value * s.weight for s in scores.values() if s.value is not None and s.weight is not None]
            made.append(
                Rollout(
                    prompt=conversation(asked),
                    completion=completion(said),
                    step=step,
                    split=split,
                    reward=sum(known) if whole and known else None,
                    components=scores,
                )
            )
        return made


class ParquetFiles:
    """The files that TRL writes with `log_completions=True`: only the last batch before each log."""

    def __init__(self, reader: Reader, folder: Path) -> None:
        self.reader = reader
        self.folder = folder
        self.seen = set(folder.glob("*.parquet"))

    def look(self) -> None:
        """Record files that have come, whole ones only: one that is being written waits for the next look."""
        for path in sorted(set(self.folder.glob("*.parquet")) - self.seen):
            try:
                rows = [found.document for found in Parquet().open(path)]
            except (DumpError, OSError):
                continue
            self.seen.add(path)
            origin = Origin(path, self.folder)
            made = [r for row in rows for r in TRL.open(row, origin) if isinstance(r, Rollout)]
            for step in sorted({r.step or 0 for r in made}):
                self.reader.recorder.rollouts(step, [replace(r, id="") for r in made if (r.step or 0) == step])
            self.reader.recorded(len(made))


def is_function(function: Any) -> bool:
    """Whether a reward function is a plain one, and no model."""
    return callable(function) and not hasattr(function, "parameters")


__all__ = ["ParquetFiles", "RewardCalls", "is_function"]

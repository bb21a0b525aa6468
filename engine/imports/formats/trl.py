"""TRL's completions (`completions/completions_%05d.parquet`, and the same table in wandb).

A row holds the step, prompt and completion, one column a reward function, columns of `log_extra`, and the advantage.
Nothing says which numbers are reward functions; the trainer's state beside it does (`rewards/<name>/mean`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ....configs import metric_names as metric
from ..format import Origin
from ..mapped import Mapped
from ..messages import completion, conversation
from ..rollout import Item, Message, Numbers, Score, listed, number, whole
from .tables import GENERIC

METRICS = {
    "reward": metric.REWARD_MEAN,
    "reward_std": metric.REWARD_STD,
    "kl": metric.KL_MEAN,
    "loss": metric.LOSS,
    "grad_norm": metric.GRAD_NORM,
    "learning_rate": metric.LEARNING_RATE,
    "entropy": metric.ENTROPY,
    "clip_ratio/region_mean": metric.CLIP_FRACTION,
    "frac_reward_zero_std": metric.FILTERING_RATE,
}
"""TRL's names of numbers that have a place of their own on the dashboard; all others keep TRL's name."""

_TABLE = Mapped(
    name="TRL completions",
    needs=("step", "prompt", "completion", "advantage"),
    keys={
        "step": ("step",),
        "prompt": ("prompt",),
        "completion": ("completion",),
        "advantage": ("advantage",),
    },
    ignored=("images", "image"),
    numbers="component",
    read_completion=lambda value: completion(_without_nulls(value)),
    read_prompt=lambda value: conversation(_without_nulls(value)),
)

_FILE = re.compile(r"completions_\d+\.parquet")
_DECLARED = frozenset(
    key
    for role in ("group", "reward", "components", "messages", "token_count", "index", "policy_version", "stop", "split")
    for key in GENERIC.keys[role]
    if "." not in key
)
"""Keys that say what a number is. TRL's own table has none: a document with one is read as it declares."""


class Trl:
    """Rows of the completions table."""

    name = _TABLE.name
    unknown: Mapping[str, str] = {
        "reward": "TRL writes each reward function's value, but neither weights nor the total",
        "weight": "TRL does not write the weights of reward functions",
        "group": "no group is written: rollouts of one prompt in one step are shown as one",
        "reward functions": "which columns are reward functions is not written: where no trainer_state.json stands "
        "beside the folder, every column of numbers is shown as one",
        "tokens": "token ids are not written, only text",
        "error": "errors are not written",
        "call arguments": "an argument that is null in the file may have been absent: arrow gives all tools one set",
        "steps": "with logging_steps above 1 only the last batch before each log is written",
    }

    def __init__(self, functions: frozenset[str] = frozenset()) -> None:
        self._functions = functions

    def detect(self, document: Any, origin: Origin) -> bool:
        """Return whether the document has the columns of the table."""
        if not _TABLE.detect(document, origin) or any(isinstance(document[k], Mapping) for k in _TABLE.needs):
            return False
        return _DECLARED.isdisjoint(document) or _FILE.match(origin.path.name) is not None

    def open(self, document: Any, origin: Origin) -> Iterable[Item]:
        """Yield a rollout for each row."""
        made = _TABLE.rollout(document, origin)
        functions = self._functions or _functions(origin)
        components = dict(made.components)
        for name in functions & document.keys():  # a function that returned None for all rows is no number
            components.setdefault(name, Score(number(document[name])))
        ours = {n: s for n, s in components.items() if not functions or n in functions}
        others = {n: s.value for n, s in components.items() if n not in ours and s.value is not None}
        extra = {k: v for k, v in made.extra.items() if k not in ours}
        yield replace(made, components=ours, extra={**extra, **others})


class TrainerState:
    """`trainer_state.json` of transformers: the metrics of a run."""

    name = "trainer state"
    unknown: Mapping[str, str] = {}

    def detect(self, document: Any, origin: Origin) -> bool:
        """Return whether the document has the keys of this format."""
        return isinstance(document, Mapping) and "log_history" in document and "global_step" in document

    def open(self, document: Any, origin: Origin) -> Iterable[Item]:
        """Yield the metrics of each log entry."""
        for entry in listed(document.get("log_history")):
            step = whole(entry.get("step")) if isinstance(entry, Mapping) else None
            if step is not None:
                named = {METRICS.get(str(k), str(k)): number(v) for k, v in entry.items() if k != "step"}
                values = {name: n for name, n in named.items() if n is not None}
                yield Numbers(step, values)


def _functions(origin: Origin) -> frozenset[str]:
    """Names of the reward functions, from the trainer's state one or two folders up; empty when there is none."""
    for name in ("trainer_state.json", "../trainer_state.json"):
        history = listed(origin.beside(name).get("log_history"))
        found = {
            key.removeprefix("rewards/").removesuffix("/mean")
            for entry in history
            if isinstance(entry, Mapping)
            for key in entry
            if key.startswith("rewards/") and key.endswith("/mean")
        }
        if found:
            return frozenset(found)
    return frozenset()


def _without_nulls(value: Any) -> Any:
    """Arrow gives every message and every call the fields of all others, null: those were not written by anyone."""
    if isinstance(value, Mapping):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(v) for v in value]
    return value


__all__ = ["Message", "TrainerState", "Trl"]

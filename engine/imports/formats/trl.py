"""TRL's completions table (`completions/completions_%05d.parquet`, and the same table in wandb).

A row holds the step, prompt and completion, a column per reward function, columns of `log_extra`, and the advantage.
Only the trainer state in the same folder names the reward functions (`rewards/<name>/mean`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from ....configs import metric_names as metric
from ..format import Documents, Origin, side_file
from ..mapped import Mapped
from ..messages import completion, conversation
from ..rollout import Item, Numbers, Score
from ..values import Document, number, objects, whole
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
    "sampling/sampling_logp_difference/mean": metric.LOGPROB_MISMATCH,
}
"""TRL names of the metrics that the dashboard shows. Other metrics keep their TRL name."""
VERL_METRICS = {
    "critic/score/mean": metric.REWARD_MEAN,
    "actor/kl_loss": metric.KL_MEAN,
    "actor/pg_loss": metric.LOSS,
    "actor/grad_norm": metric.GRAD_NORM,
    "actor/lr": metric.LEARNING_RATE,
    "actor/entropy": metric.ENTROPY,
    "actor/pg_clipfrac": metric.CLIP_FRACTION,
}
"""verl's names of the same metrics."""


def metric_name(name: str) -> str:
    """Translate a metric name of verl, or of TRL or its reporters (`train/reward`), into ours."""
    bare = name.removeprefix("train/")
    return METRICS.get(bare) or VERL_METRICS.get(bare, bare)


_TABLE = Mapped(
    name="TRL completions",
    needs=("step", "prompt", "completion", "advantage"),
    keys={"step": ("step",), "prompt": ("prompt",), "completion": ("completion",), "advantage": ("advantage",)},
    ignored=("images", "image"),
    numbers="component",
    read_completion=lambda value: completion(_without_nulls(value)),
    read_prompt=lambda value: conversation(_without_nulls(value)),
)

_FILE = re.compile(r"completions_\d+\.parquet")
_FUNCTION = re.compile(r"rewards/(.*)/mean", re.S)
_DECLARED = frozenset(
    key
    for role in ("group", "reward", "components", "messages", "token_count", "index", "policy_version", "stop", "split")
    for key in GENERIC.keys[role]
    if "." not in key
)
"""Keys that declare the meaning of a number. TRL's own table has none."""


def trl(functions: frozenset[str] = frozenset()) -> Documents:
    """Return the format of the completions table. `functions`: the names of the reward functions, if known."""

    def read(document: Document, origin: Origin) -> Iterable[Item]:
        rollout = _TABLE.rollout(document, origin)
        known = functions or _functions(origin.path.parent)
        components = dict(rollout.components)
        for name in (n for n in document if n in known):  # a function that returned None for all rows has no numbers
            components.setdefault(name, Score(number(document[name])))
        own = {n: s for n, s in components.items() if not known or n in known}
        others = {n: s.value for n, s in components.items() if n not in own and s.value is not None}
        extra = {k: v for k, v in rollout.extra.items() if k not in own}
        yield replace(rollout, components=own, extra={**extra, **others})

    return Documents(
        _TABLE.name,
        read,
        when=_is_row,
        unknown={
            "reward": "TRL writes each reward function's value, but neither weights nor the total",
            "weight": "TRL does not write the weights of reward functions",
            "reward functions": "the writer does not mark reward functions: without a trainer_state.json next to the "
            "folder, every column of numbers is shown as one",
            "tokens": "token ids are not written, only text",
            "error": "errors are not written",
            "call arguments": "a null argument may have been absent: arrow gives all tools one set of arguments",
            "steps": "with logging_steps above 1 only the last batch before each log is written",
        },
    )


def _is_row(document: Document, origin: Origin) -> bool:
    if not _TABLE.detect(document, origin) or any(isinstance(document[k], Mapping) for k in _TABLE.needs):
        return False
    return _DECLARED.isdisjoint(document) or _FILE.match(origin.path.name) is not None


TRL = trl()


def _state(document: Document, origin: Origin) -> Iterable[Item]:
    for entry in objects(document.get("log_history")):
        if (step := whole(entry.get("step"))) is not None:
            metrics = {metric_name(str(k)): number(v) for k, v in entry.items() if k != "step"}
            yield Numbers(step, {name: n for name, n in metrics.items() if n is not None})


TRAINER_STATE = Documents("trainer state", _state, keys=("log_history", "global_step"))
"""`trainer_state.json` of transformers."""


@lru_cache(maxsize=16)  # both the log and the rows grow with training
def _functions(folder: Path) -> frozenset[str]:
    """Return the names of the reward functions from the trainer state, in the same folder or its parent."""
    for name in ("trainer_state.json", "../trainer_state.json"):
        keys = {key for entry in objects(side_file(folder / name).get("log_history")) for key in entry}
        if found := frozenset(m[1] for key in keys if (m := _FUNCTION.fullmatch(key))):
            return found
    return frozenset()


def _without_nulls(value: object) -> object:
    """Remove the null fields that Arrow adds to give all messages and calls the same fields."""
    if isinstance(value, Mapping):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(v) for v in value]
    return value

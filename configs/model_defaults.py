"""The defaults that follow from the model: learning rate, lengths, batch, precision, length of a run.

One table for `train`, `config show`, `init`, presets and `doctor`. docs/architecture/training.md gives its sources.
`chosen` returns a value and a reason for every unset key. The built-in policies keep the values of their preset,
`presets/tiny.yaml`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .model_facts import ModelFacts, device_of, facts_of, half_precision
from .sections.base import Section
from .yaml_source import parse_yaml

if TYPE_CHECKING:
    from .sections import ModelConfig, TrainingConfig

BUILTIN = "builtin:"
BUILTIN_MODEL = "builtin:tiny"
TINY = Path(__file__).parent / "presets" / "tiny.yaml"

LORA_RATES = ((30e6, 1e-3), (300e6, 1e-4), (1e9, 3e-5), (float("inf"), 1e-5))
"""Learning rates of LoRA in reinforcement fine-tuning: up to so many parameters, so much."""
SFT_LORA, SFT_WHOLE = 2e-4, 2e-5
"""Learning rates of supervised fine-tuning; TRL's default is 2e-5, and ten times as much for LoRA."""
FAR = 10.0
"""A learning rate that differs from the usual one by more than this factor is worth a warning."""

SHORTEST_RUN, LONGEST_RUN = 30, 500
"""Steps of a run without `training.max_steps`: one pass over the data within these bounds."""


@dataclass(frozen=True)
class Lengths:
    """Tokens of a turn and of a whole trajectory, and prompts in a step."""

    turn: int
    trajectory: int
    prompts: int
    eval_tasks: int


LENGTHS = {
    (False, False): Lengths(turn=128, trajectory=1024, prompts=4, eval_tasks=64),
    (False, True): Lengths(turn=512, trajectory=2048, prompts=4, eval_tasks=64),
    (True, False): Lengths(turn=512, trajectory=2048, prompts=16, eval_tasks=128),
    (True, True): Lengths(turn=2048, trajectory=4096, prompts=16, eval_tasks=128),
}
"""By whether there is a GPU, and whether the model thinks before it answers."""


@dataclass(frozen=True)
class Choice:
    """A value that the table chose for a key, and the reason."""

    key: str
    value: Any
    why: str


@dataclass(frozen=True)
class Setting:
    """The facts of a model, and how it is trained."""

    facts: ModelFacts
    lora: bool
    device: str
    thinks: bool
    serves: bool = False
    """Whether the run answers requests (`online`)."""

    @property
    def size(self) -> str:
        count = self.facts.parameters
        if count is None:
            return "a model of unknown size"
        return f"{count / 1e6:,.0f} million parameters" if count < 1e9 else f"{count / 1e9:.1f} billion parameters"

    @property
    def trained(self) -> str:
        return f"{'LoRA on' if self.lora else 'all weights of'} {self.size}"


def learning_rate(setting: Setting) -> Choice:
    """Return the learning rate of GRPO. A model of unknown size gets that of a large one.

    All weights learn at a tenth of the rate of LoRA (Schulman et al., "LoRA Without Regret", 2025).
    """
    count = setting.facts.parameters or float("inf")
    rate = next(rate for limit, rate in LORA_RATES if count <= limit)
    value = rate if setting.lora else float(f"{rate * 0.1:.1g}")
    return Choice("training.learning_rate", value, setting.trained)


def lengths(setting: Setting) -> Iterator[Choice]:
    """Yield token limits within the model's context, and the batch that goes with them."""
    found = LENGTHS[setting.device != "cpu", setting.thinks]
    where = "on a CPU" if setting.device == "cpu" else "on a GPU"
    reason = f"a model that {'thinks before it answers' if setting.thinks else 'answers at once'}, {where}"
    turn, trajectory = found.turn, found.trajectory
    if (context := setting.facts.context) is not None and context - turn < trajectory:
        # Rows that are padded to one width reach beyond their own end by up to a turn.
        turn = min(turn, max(1, context // 3))
        trajectory = min(trajectory, max(1, context - turn))
        reason += f", with a context of {context:,} tokens"
    yield Choice("training.max_turn_tokens", turn, reason)
    yield Choice("training.max_trajectory_tokens", trajectory, reason)
    yield Choice("online.max_turn_tokens", min(found.turn, max(1, trajectory // 2)), reason)
    yield Choice("online.max_trajectory_tokens", trajectory, reason)
    yield Choice("training.prompts_per_step", found.prompts, where)
    yield Choice("environment.eval_tasks", found.eval_tasks, where)


def precision(setting: Setting) -> Iterator[Choice]:
    """Yield the number formats of weights, training and sampling. `engine/policy/precision.py` has the reasons."""
    computed, cause = half_precision(setting.device)
    if setting.serves and setting.device == "cpu":
        computed, cause = "float32", "answers equal those of transformers, and a CPU decodes as fast in float32"
    elif setting.facts.parameters is not None and setting.facts.parameters < 30e6:
        computed, cause = "float32", f"{setting.size} run as fast in float32"
    kept, reason = (computed, cause) if setting.lora else ("float32", "updates of all weights are too small for less")
    yield Choice("model.weights", kept, reason)
    yield Choice("model.compute", computed, cause)
    yield Choice("model.sampling", computed, cause)


def table(setting: Setting) -> Iterator[Choice]:
    """Yield every value that follows from a model that is not built in."""
    yield (rate := learning_rate(setting))
    yield Choice("sft.learning_rate", SFT_LORA if setting.lora else SFT_WHOLE, setting.trained)
    # While serving, an update sees one request, and there are only several hundred.
    for key, factor in (("lr_correction", 5), ("lr_adaptive_max", 5), ("lr_adaptive_min", 3)):
        yield Choice(f"online.{key}", float(f"{rate.value * factor:.1g}"), rate.why)
    yield from lengths(setting)
    yield from precision(setting)
    yield Choice("training.max_steps", None, f"one pass over the data, {SHORTEST_RUN} to {LONGEST_RUN} steps")


def chosen(settings: Mapping[str, object]) -> list[Choice]:
    """Return the choices for all keys that `settings`, plain data of a configuration, leaves open."""
    model = _section(settings, "model")
    base = model.get("base", BUILTIN_MODEL)
    if not isinstance(base, str):
        return []
    if base.startswith(BUILTIN):
        return [choice for choice in _tiny() if not _is_set(settings, choice.key)]
    if all(_is_set(settings, key) for key in KEYS):
        return []
    setting = replace(setting_of(model), serves=settings.get("mode") == "online")
    return [choice for choice in table(setting) if not _is_set(settings, choice.key)]


def setting_of(model: Mapping[str, object]) -> Setting:
    """Read the facts of a model from the section `model`."""
    revision = model.get("revision")
    facts = facts_of(str(model.get("base")), revision if isinstance(revision, str) else None)
    options = model.get("chat_template_kwargs")
    thinking = options.get("enable_thinking") if isinstance(options, Mapping) else None
    device = device_of(str(model.get("device", "auto")))
    return Setting(facts, model.get("lora", True) is not None, device, facts.thinks and thinking is not False)


def steps_of(training: TrainingConfig, rows: int) -> int:
    """Return the optimiser steps of a run on this number of rows."""
    if training.max_steps is not None:
        return training.max_steps
    if "num_train_epochs" in training.trl:
        updates = training.trl["num_train_epochs"] * training.trl.get("num_iterations", 1)
        return max(math.ceil(updates * rows / training.prompts_per_step), 1)
    return min(max(-(-rows // training.prompts_per_step), SHORTEST_RUN), LONGEST_RUN)


def unusual(model: ModelConfig, training: TrainingConfig) -> Iterator[str]:
    """Yield a sentence for each value that is far from the usual one for such a model."""
    if model.base.startswith(BUILTIN):
        return
    setting = setting_of(model.model_dump())
    usual = learning_rate(setting)
    ratio = training.learning_rate / usual.value
    if max(ratio, 1 / ratio) > FAR:
        effect = "the policy may collapse within a few steps" if ratio > 1 else "the policy will hardly change"
        size = f"{ratio:.0f} times" if ratio > 1 else f"1/{1 / ratio:.0f} of"
        yield (
            f"training.learning_rate is {training.learning_rate:g}, {size} the {usual.value:g} that is usual for "
            f"{setting.trained}: {effect}"
        )
    formats = model.compute, model.sampling
    if setting.device == "cpu" and "float16" in formats:
        yield "model.compute or model.sampling is float16, which a CPU computes about ten times slower than float32"
    elif setting.device == "cpu" and "bfloat16" in formats and half_precision("cpu")[0] == "float32":
        yield (
            "model.compute or model.sampling is bfloat16, which this CPU computes six to eight times slower than "
            "float32: it has neither AVX512-BF16 nor AMX"
        )
    context = setting.facts.context
    if context is not None and training.max_trajectory_tokens > context:
        yield (
            f"training.max_trajectory_tokens is {training.max_trajectory_tokens:,}, but the model's context is "
            f"{context:,} tokens"
        )
    if setting.thinks and training.max_turn_tokens < LENGTHS[False, True].turn:
        yield (
            f"training.max_turn_tokens is {training.max_turn_tokens}, but this model thinks before it answers: most "
            "answers will be cut off; raise it, or set model.chat_template_kwargs: {enable_thinking: false}"
        )


def _section(settings: Mapping[str, object], name: str) -> Mapping[str, object]:
    """Return a section of plain data, or the values of a finished section."""
    value = settings.get(name)
    if isinstance(value, Mapping):
        return value
    return value.model_dump() if isinstance(value, Section) else {}


def _is_set(settings: Mapping[str, object], key: str) -> bool:
    name, _, inner = key.partition(".")
    return inner in _section(settings, name)


@cache
def _tiny() -> tuple[Choice, ...]:
    data = parse_yaml(TINY.read_text(encoding="utf-8"), os.fspath(TINY)).data
    return tuple(
        Choice(f"{name}.{key}", value, "preset tiny")
        for name, section in data.items()
        if isinstance(section, dict)
        for key, value in section.items()
        if (name, key) != ("model", "base")
    )


KEYS = tuple(choice.key for choice in table(Setting(ModelFacts(), True, "cpu", False)))
"""The keys that the table decides."""

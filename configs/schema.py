"""The configuration of a run. Each section is defined in its own file under `sections/`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from .model_defaults import BUILTIN_MODEL, chosen
from .sections import (
    DataConfig,
    EnvironmentConfig,
    EvaluationConfig,
    LoggingConfig,
    ModelConfig,
    OnlineConfig,
    RewardsConfig,
    RolloutsConfig,
    Section,
    SFTConfig,
    TrainingConfig,
)
from .sections.data import holds_tasks

CHAT_ENV = "grpo_tui.envs.chat.ChatEnv"
DATASET_ENV = "grpo_tui.envs.dataset.DatasetEnv"
BUILTIN_ADAPTERS = {"builtin:tiny": "builtin:tiny-sft", "builtin:tiny-vl": "builtin:tiny-vl-sft"}
"""The starting adapters of each built-in model."""


class RunConfig(Section):
    """The full configuration of a run. The run's folder stores it, with defaults resolved, as `config.yaml`."""

    mode: Literal["sft", "rft", "online", "eval"] = "rft"
    name: str = ""
    """A display name. The run's id is generated."""
    seed: int = Field(default=0, ge=0)
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    rewards: RewardsConfig = RewardsConfig()
    sft: SFTConfig = SFTConfig()
    training: TrainingConfig = TrainingConfig()
    rollouts: RolloutsConfig = RolloutsConfig()
    online: OnlineConfig = OnlineConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    logging: LoggingConfig = LoggingConfig()

    @model_validator(mode="before")
    @classmethod
    def _defaults_that_follow(cls, raw: object) -> object:
        """Fill in defaults that depend on other keys. Values from the user take precedence.

        - The model determines learning rate, lengths, batch size and precision (`model_defaults`).
        - `DatasetEnv` reads a dataset of prompts.
        - Each built-in model starts from its own adapters. Other models start without adapters.
        - Curiosity and coherence are off in conversations and with the user's own data or reward functions.
        """
        if not isinstance(raw, Mapping):
            return raw
        data, environment, model = (_written(raw, name) for name in ("data", "environment", "model"))
        follows: dict[str, dict[str, object]] = {"environment": {}, "model": {}, "rewards": {}}
        if data.get("source") and not holds_tasks(data["source"]):
            follows["environment"]["class_path"] = DATASET_ENV
        if model.get("base", BUILTIN_MODEL) != BUILTIN_MODEL:
            base = model.get("base")
            follows["model"]["sft_adapters"] = BUILTIN_ADAPTERS.get(base) if isinstance(base, str) else None
        class_path = environment.get("class_path", follows["environment"].get("class_path"))
        if environment.get("reward_funcs") or class_path in (CHAT_ENV, DATASET_ENV):
            follows["rewards"] = {"w_curiosity": 0.0, "w_coherence": 0.0}
        for choice in chosen(raw):
            section, _, key = choice.key.partition(".")
            follows.setdefault(section, {})[key] = choice.value
        out = dict(raw)
        for name, values in follows.items():
            if values and isinstance(out.get(name, {}), Mapping):
                out[name] = {**values, **out.get(name, {})}
        return out


def _written(values: Mapping[str, object], section: str) -> Mapping[str, object]:
    value = values.get(section)
    return value if isinstance(value, Mapping) else {}

"""The whole configuration of a run. Each room's keys are in its own file under `sections/`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from .model_defaults import BUILTIN_MODEL, chosen
from .sections import (
    DataConfig,
    EnvironmentConfig,
    LoggingConfig,
    ModelConfig,
    OnlineConfig,
    RewardsConfig,
    RolloutsConfig,
    Section,
    SFTConfig,
    TrainingConfig,
)

DATASET_ENV = "grpo_tui.envs.dataset.DatasetEnv"
BUILTIN_ADAPTERS = {"builtin:tiny": "builtin:tiny-sft", "builtin:tiny-vl": "builtin:tiny-vl-sft"}
"""The adapters that each built-in model starts from."""


class RunConfig(Section):
    """Everything a run needs to know; stored resolved as `config.yaml` in the run's folder."""

    mode: Literal["sft", "rft", "online"] = "rft"
    name: str = ""
    """A name for people; the run's id is made."""
    seed: int = Field(default=0, ge=0)
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    rewards: RewardsConfig = RewardsConfig()
    sft: SFTConfig = SFTConfig()
    training: TrainingConfig = TrainingConfig()
    rollouts: RolloutsConfig = RolloutsConfig()
    online: OnlineConfig = OnlineConfig()
    logging: LoggingConfig = LoggingConfig()

    @model_validator(mode="before")
    @classmethod
    def _defaults_that_follow(cls, data: Any) -> Any:
        return with_defaults_that_follow(data) if isinstance(data, Mapping) else data


def with_defaults_that_follow(given: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults that another key decides, where nothing else is written.

    The model decides learning rate, lengths, batch and precision (`model_defaults`). A dataset is read by the
    environment of conversations; another model does not start from the built-in policy's adapters (another built-in
    one starts from its own); and where people bring their own reward functions, these are the reward, with no
    curiosity or coherence.
    """
    data, environment, model = (_written(given, name) for name in ("data", "environment", "model"))
    follows: dict[str, dict[str, Any]] = {"environment": {}, "model": {}, "rewards": {}}
    if data.get("source"):
        follows["environment"]["class_path"] = DATASET_ENV
    if model.get("base", BUILTIN_MODEL) != BUILTIN_MODEL:
        base = model.get("base")
        follows["model"]["sft_adapters"] = BUILTIN_ADAPTERS.get(base) if isinstance(base, str) else None
    if environment.get("reward_funcs") or data.get("source"):
        follows["rewards"] = {"w_curiosity": 0.0, "w_coherence": 0.0}
    for choice in chosen(given):
        section, _, key = choice.key.partition(".")
        follows.setdefault(section, {})[key] = choice.value
    out = dict(given)
    for name, values in follows.items():
        if values and isinstance(out.get(name, {}), Mapping):
            out[name] = {**values, **out.get(name, {})}
    return out


def _written(given: Mapping[str, Any], section: str) -> Mapping[str, Any]:
    value = given.get(section)
    return value if isinstance(value, Mapping) else {}

"""The whole configuration of a run. Each room's keys are in its own file under `sections/`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .sections import (
    EnvironmentConfig,
    LoggingConfig,
    ModelConfig,
    OnlineConfig,
    RewardsConfig,
    Section,
    SFTConfig,
    TrainingConfig,
)


class RunConfig(Section):
    """Everything a run needs to know; stored resolved as `config.yaml` in the run's folder."""

    mode: Literal["sft", "rft", "online"] = "rft"
    name: str = ""
    """A name for people; the run's id is made."""
    seed: int = Field(default=0, ge=0)
    model: ModelConfig = ModelConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    rewards: RewardsConfig = RewardsConfig()
    sft: SFTConfig = SFTConfig()
    training: TrainingConfig = TrainingConfig()
    online: OnlineConfig = OnlineConfig()
    logging: LoggingConfig = LoggingConfig()

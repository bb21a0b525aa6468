"""The base class of all sections, and three small sections. Unknown keys, NaN and infinity are errors, also on
assignment."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A section of the configuration."""

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class LoggingConfig(Section):
    """Where to log metrics in addition to the record."""

    report_to: list[str] = Field(default_factory=list)
    """One or more trackers of transformers: wandb, trackio, tensorboard, mlflow, swanlab and others. Each reads its own
    environment variables."""
    wandb: Literal["off", "offline", "online"] = "off"
    """The mode of wandb, with or without `report_to`. `offline` needs no API key."""
    wandb_project: str = "grpo-tui"
    record_tokens: bool = True
    """Record the token ids, masks, log-probs and advantages of every trajectory."""

    @property
    def wandb_mode(self) -> Literal["off", "offline", "online"]:
        return "online" if self.wandb == "off" and "wandb" in self.report_to else self.wandb


class BranchConfig(Section):
    """The recorded step from which rollouts continue. `grpo-tui branch` writes this section."""

    run: str = ""
    """Folder of the run; empty: no branch."""
    rollout: int = Field(default=0, ge=0)
    """Number of the rollout."""
    step: int = Field(default=0, ge=0)
    """Step of the rollout, from 1."""
    token: int | None = Field(default=None, ge=1)
    """Number of the step's tokens to keep, for a branch within the step."""


class EvaluationConfig(Section):
    """The policy under evaluation and its sampling settings. `grpo-tui eval` writes this section."""

    subject: str = ""
    """The policy: a run, `RUN@STEP`, adapters, a model, or `URL@NAME`."""
    step: int = Field(default=0, ge=0)
    """Optimiser steps that the policy was trained for."""
    samples: int = Field(default=1, ge=1)
    """Rollouts per task."""
    temperature: float = Field(default=0.0, ge=0.0)
    """Sampling temperature; 0 is greedy."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable with the API key of an endpoint (`model.base: http://HOST:PORT/v1@NAME`)."""
    request: dict[str, Any] = Field(default_factory=dict)
    """More fields of endpoint requests, such as `reasoning_effort: low`; null omits a field."""
    parallel: int = Field(default=16, ge=1)
    """Maximum concurrent requests to an endpoint."""
    tries: int = Field(default=8, ge=1)
    """Maximum attempts per request while an endpoint is busy or fails. The pauses double from 1 s to 60 s."""
    branch: BranchConfig = BranchConfig()

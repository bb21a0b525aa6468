"""Reinforcement fine-tuning with GRPO."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Section


class TrainingConfig(Section):
    """`--mode rft`."""

    max_steps: int = Field(default=150, ge=1)
    prompts_per_step: int = Field(default=16, ge=1)
    """Different prompts in one optimiser step."""
    num_generations: int = Field(default=8, ge=2)
    """Rollouts per prompt: GRPO's group size."""
    micro_batch_size: int | None = Field(default=None, ge=1)
    """Trajectories per backward pass; null: as many as fit the token budget."""
    learning_rate: float = Field(default=3e-3, gt=0)
    advantages: Literal["reward", "group", "turn"] = "group"
    scale_advantages: Literal["group", "batch", "none"] = "group"
    loss_type: str = "dapo"
    beta: float = Field(default=0.01, ge=0)
    """Weight of the KL penalty to the reference policy."""
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    max_turn_tokens: int = Field(default=64, ge=1)
    max_trajectory_tokens: int = Field(default=512, ge=1)
    max_grad_norm: float = Field(default=1.0, gt=0)
    eval_every: int = Field(default=25, ge=0)
    """Steps between evaluations on held-out tasks; 0: only at the end."""
    save_every: int = Field(default=50, ge=0)
    output_dir: str = "saved_models/rft_adapters"

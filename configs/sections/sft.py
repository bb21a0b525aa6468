"""Supervised fine-tuning on demonstrations."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Section


class SFTConfig(Section):
    """`--mode sft`."""

    epochs: float = Field(default=1.0, gt=0)
    max_steps: int | None = Field(default=None, ge=1)
    """Stop after this many optimiser steps, even within `epochs`."""
    batch_size: int = Field(default=16, ge=1)
    """Conversations in one optimiser step of one process."""
    micro_batch_size: int | None = Field(default=None, ge=1)
    """Conversations per backward pass, a divisor of `batch_size`; null: all of them."""
    learning_rate: float = Field(default=2e-4, gt=0)
    lr_scheduler: Literal["constant", "linear", "cosine", "constant_with_warmup"] = "linear"
    warmup_steps: int = Field(default=0, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    demonstrations: int = Field(default=2048, ge=1)
    """How many demonstrations the environment makes (`Env.demonstrate`) when there is no file of them."""
    route: str = "right"
    """Which of the environment's routes is shown."""
    max_tokens: int = Field(default=1024, ge=8)
    """Conversations with more tokens are left out."""
    data: str | None = None
    """A JSONL file of conversations (`messages`), instead of the environment's demonstrations. The opening has the
    roles system and user; then assistant and user alternate, because observations of environments arrive as user."""
    save_every: int = Field(default=50, ge=0)
    """Steps between checkpoints; 0: by time alone. There is always one at the start, after the first step and at the
    end."""
    save_minutes: float = Field(default=5.0, ge=0)
    """Minutes after which a checkpoint is due in any case; 0: by steps alone."""
    eval_tasks: int | None = Field(default=None, ge=0)
    """Held-out tasks of the environment on which success is measured before and after; 0: not at all; null: 64, or 0
    with `sft.data`."""
    output_dir: str = "saved_models/sft_adapters"
    """A link to the adapters of the latest finished run; see `training.output_dir`."""

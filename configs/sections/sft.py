"""Supervised fine-tuning on demonstrations."""

from __future__ import annotations

from pydantic import Field

from .base import Section


class SFTConfig(Section):
    """`--mode sft`."""

    epochs: float = Field(default=1.0, gt=0)
    max_steps: int | None = Field(default=None, ge=1)
    batch_size: int = Field(default=16, ge=1)
    learning_rate: float = Field(default=3e-3, gt=0)
    demonstrations: int = Field(default=2048, ge=1)
    """How many demonstrations the environment makes (`Env.demonstrations`) when there is no file of them."""
    data: str | None = None
    """A JSONL file of conversations (`messages`), instead of the environment's demonstrations."""
    output_dir: str = "saved_models/sft_adapters"

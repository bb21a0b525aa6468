"""Which policy is trained, and how."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Section


class LoraSection(Section):
    """The adapters that are trained (peft)."""

    r: int = Field(default=16, ge=1)
    """Rank."""
    alpha: int = Field(default=32, ge=1)
    """Scale: the adapter's output is multiplied by alpha / r."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    target_modules: str | list[str] = "all-linear"


class ModelConfig(Section):
    """The base model and its adapters."""

    base: str = "builtin:tiny"
    """`builtin:tiny`, a folder, or a hub id such as `Qwen/Qwen3-0.6B`."""
    revision: str | None = None
    """A commit or tag of a hub model; pin it for repeatable runs."""
    sft_adapters: str | None = "builtin:tiny-sft"
    """Where reinforcement fine-tuning starts: a folder of adapters, `builtin:tiny-sft`, or null for the bare base.
    `saved_models/sft_adapters` is where `--mode sft` leaves them."""
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    gradient_checkpointing: bool = True
    attn_implementation: str | None = None
    lora: LoraSection = LoraSection()

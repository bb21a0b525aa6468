"""The trained policy: base model, adapters and number formats."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from .base import Section

NumberFormat = Literal["float32", "bfloat16", "float16"]
ENDPOINT = ("http://", "https://")
"""Prefixes of a `base` that names a server (`URL@NAME`). Only evaluations support servers."""


class LoraSection(Section):
    """The trained adapters (peft)."""

    r: int = Field(default=16, ge=1)
    """Rank."""
    alpha: int = Field(default=32, ge=1)
    """Scale. The adapter's output is multiplied by alpha / r."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    target_modules: str | list[str] = "all-linear"
    peft: dict[str, Any] = Field(default_factory=dict)
    """Additional fields of PEFT's `LoraConfig`, such as `use_rslora: true` or `use_dora: true`."""
    vision: bool = False
    """For a model with image input: train adapters on the vision tower and its projection, too. If false, both are
    frozen and each image is encoded only once."""


class ModelConfig(Section):
    """The base model and its adapters."""

    base: str = "builtin:tiny"
    """`builtin:tiny`, a folder, or a hub id such as `Qwen/Qwen3-0.6B`. A model with image input (`builtin:tiny-vl`,
    `Qwen/Qwen3-VL-2B-Instruct`) also gets the images of prompts and tools."""
    revision: str | None = None
    """A commit or tag of a hub model. Pin it for reproducible runs."""
    sft_adapters: str | None = "builtin:tiny-sft"
    """The initial adapters of reinforcement fine-tuning: a folder, `builtin:tiny-sft`, or null for the base
    model. `saved_models/sft_adapters` links to the adapters of the latest `--mode sft`."""
    weights: NumberFormat = "float32"
    """The number format of stored weights: the frozen weights under adapters (adapters are always float32), or all
    weights with `lora: null`, where formats other than float32 lose most updates."""
    compute: NumberFormat = "float32"
    """The number format of matrix products in training. Sums in which small changes must survive stay in float32."""
    sampling: NumberFormat = "float32"
    """The number format of matrix products in this process's rollouts and in evaluation."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """`auto`: a CUDA GPU if available, else the CPU. `mps`: the GPU of a Mac (untested)."""
    chat_template: str | None = None
    """For a base model without a template: `chatml`, or a file with a Jinja template. null: the tokenizer's own."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Additional arguments of the chat template, such as `enable_thinking: false` for Qwen3."""
    tool_calls: Literal["auto", "native", "json"] = "auto"
    """How the policy calls tools that it was not trained on. `native`: in the syntax of its chat template, if that
    supports tools. `json`: as JSON objects explained in the prompt. `auto`: `native` without `sft_adapters`, which are
    trained on JSON, otherwise `json`."""
    quantization: Literal["nf4"] | None = None
    """`nf4`: a 4-bit base model with adapters (QLoRA), on a CUDA GPU with bitsandbytes. null: no quantization."""
    gradient_checkpointing: bool | Literal["auto"] = "auto"
    """Recompute layers in the backward pass to save memory for activations. `auto`: if the activations of a micro-batch
    of one trajectory would exceed 1 GiB or, on a larger GPU, a quarter of its memory."""
    attn_implementation: str | None = None
    lora: LoraSection | None = LoraSection()
    """The trained adapters. null: train all weights (full fine-tuning, after merging `sft_adapters` into them)."""

    max_pixels: int | None = Field(default=None, ge=1)
    """For a model with image input: larger images are scaled down to this many pixels and use fewer tokens."""
    max_images: int | None = Field(default=None, ge=1)
    """For a model with image input: maximum images per conversation. A conversation that would exceed it ends, as
    with too many tokens."""

    @property
    def is_endpoint(self) -> bool:
        return self.base.startswith(ENDPOINT)

    @property
    def native_calls(self) -> bool:
        return self.tool_calls == "native" or (self.tool_calls == "auto" and self.sft_adapters is None)

    @field_validator("chat_template_kwargs")
    @classmethod
    def _reject_reserved_keys(cls, value: dict[str, object]) -> dict[str, object]:
        for name in ("messages", "conversation", "tools", "tokenize", "add_generation_prompt", "chat_template"):
            if name in value:
                raise ValueError(f"{name} is set by the program. Give only keys of the template (enable_thinking)")
        return value

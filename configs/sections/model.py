"""Which policy is trained, and how."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from .base import Section

NumberFormat = Literal["float32", "bfloat16", "float16"]
ENDPOINT = ("http://", "https://")
"""Starts of a `base` that is a server's `URL@NAME`, which only evaluations take."""


class LoraSection(Section):
    """The adapters that are trained (peft)."""

    r: int = Field(default=16, ge=1)
    """Rank."""
    alpha: int = Field(default=32, ge=1)
    """Scale: the adapter's output is multiplied by alpha / r."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    target_modules: str | list[str] = "all-linear"
    peft: dict[str, Any] = Field(default_factory=dict)
    """Further fields of PEFT's `LoraConfig`, such as `use_rslora: true` or `use_dora: true`."""
    vision: bool = False
    """Adapters on the vision tower and its projection, too, for a model that takes images; else these are frozen, and
    what they make of an image is made once."""


class ModelConfig(Section):
    """The base model and its adapters."""

    base: str = "builtin:tiny"
    """`builtin:tiny`, a folder, or a hub id such as `Qwen/Qwen3-0.6B`. A model that takes images (`builtin:tiny-vl`,
    `Qwen/Qwen3-VL-2B-Instruct`) is shown the pictures of prompts and tools."""
    revision: str | None = None
    """A commit or tag of a hub model; pin it for repeatable runs."""
    sft_adapters: str | None = "builtin:tiny-sft"
    """Where reinforcement fine-tuning starts: a folder of adapters, `builtin:tiny-sft`, or null for the bare base.
    `saved_models/sft_adapters` is a link to those of the latest `--mode sft`."""
    weights: NumberFormat = "float32"
    """The number format of weights that are kept: frozen ones under adapters, which are float32 themselves, or all of
    them with `lora: null`, where anything but float32 loses most updates."""
    compute: NumberFormat = "float32"
    """The number format of products in training; sums that small changes have to survive stay in float32."""
    sampling: NumberFormat = "float32"
    """The number format of products in rollouts of this process and in evaluation."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """`auto`: a CUDA GPU, else the CPU. `mps`: the GPU of a Mac, which no test has run on."""
    chat_template: str | None = None
    """`chatml`, or a file with a Jinja template, for a base model without one; null: the tokenizer's own."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the chat template, such as `enable_thinking: false` for Qwen3."""
    tool_calls: Literal["auto", "native", "json"] = "auto"
    """How the policy calls tools that it was not taught: `native`, in the syntax of its own chat template, where that
    shows tools; `json`, as JSON objects that the prompt explains; `auto`, `native` without `sft_adapters`, which learn
    JSON."""
    quantization: Literal["nf4"] | None = None
    """`nf4`: the base model in 4 bits with adapters (QLoRA), on a CUDA GPU with bitsandbytes. null: not quantized."""
    gradient_checkpointing: bool | Literal["auto"] = "auto"
    """Run layers again in the backward pass, so that less memory holds what they computed; `auto`: where that of a
    micro-batch of one group would take more than 2 GiB, or a quarter of the memory of a GPU."""
    attn_implementation: str | None = None
    lora: LoraSection | None = LoraSection()
    """The adapters that are trained; null: all weights of the model are (full fine-tuning, with `sft_adapters` merged
    into them first)."""

    max_pixels: int | None = Field(default=None, ge=1)
    """For a model that takes images: larger pictures are scaled down to so many pixels, and cost fewer tokens."""
    max_images: int | None = Field(default=None, ge=1)
    """For a model that takes images: a conversation that would have more ends, as one with too many tokens does."""

    @property
    def is_endpoint(self) -> bool:
        return self.base.startswith(ENDPOINT)

    @property
    def native_calls(self) -> bool:
        return self.tool_calls == "native" or (self.tool_calls == "auto" and self.sft_adapters is None)

    @field_validator("chat_template_kwargs")
    @classmethod
    def _not_ours(cls, value: dict[str, object]) -> dict[str, object]:
        for name in ("messages", "conversation", "tools", "tokenize", "add_generation_prompt", "chat_template"):
            if name in value:
                raise ValueError(f"{name} is set by the program. Give only keys of the template (enable_thinking)")
        return value

"""Differences between the versions of transformers and TRL that grpo-tui runs with. Each entry names when it can go."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel, cache_utils

OLD_CHECKPOINTING = not hasattr(PreTrainedModel, "activation_checkpointing_enable")
"""Before transformers 5.23 activation checkpointing was called gradient checkpointing."""

_NAME = "gradient_checkpointing" if OLD_CHECKPOINTING else "activation_checkpointing"

NO_CHECKPOINTING: dict[str, Any] = {_NAME: False}
"""The trainer's argument that leaves checkpointing to `spare_memory`."""


def enable_checkpointing(model: PreTrainedModel, kwargs: dict[str, Any]) -> None:
    """Switch on checkpointing for all layers of `model`. kwargs: those of `torch.utils.checkpoint.checkpoint`."""
    getattr(model, f"{_NAME}_enable")(kwargs)


def is_checkpointing(model: PreTrainedModel) -> bool:
    """Return whether `model` computes activations again in the backward pass."""
    return getattr(model, f"is_{_NAME}")


def cache_layers(config: PreTrainedConfig) -> list[tuple[str, dict[str, Any]]]:
    """Return the kind and the cache arguments of each layer of a language model."""
    # Before transformers 5.23: `get_layer_types_and_kwargs` returns one dictionary, or does not exist.
    read = getattr(cache_utils, "get_layer_types_and_kwargs", None)
    kinds, details = read(config) if read is not None else (_kinds(config), {})
    if isinstance(details, dict):
        windows = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
        own = {kind: {"sliding_window": getattr(config, name, None)} for kind, name in windows.items()}
        return [(kind, details | own.get(kind, {})) for kind in kinds]
    return list(zip(kinds, details, strict=True))


def _kinds(config: PreTrainedConfig) -> list[str]:
    known = getattr(config, "layer_types", None)
    if known is None:
        windowed = getattr(config, "sliding_window", None) is not None
        chunked = getattr(config, "attention_chunk_size", None) is not None
        known = ["sliding_attention" if windowed else "chunked_attention" if chunked else "full_attention"]
        known *= config.num_hidden_layers
    return list(known)

"""Differences between supported versions of transformers and TRL. Each entry names when it can be removed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import get_layer_types_and_kwargs

OLD_CHECKPOINTING = not hasattr(PreTrainedModel, "activation_checkpointing_enable")
"""Before transformers 5.23, activation checkpointing was called gradient checkpointing."""

_NAME = "gradient_checkpointing" if OLD_CHECKPOINTING else "activation_checkpointing"

NO_CHECKPOINTING: dict[str, object] = {_NAME: False}
"""The trainer's argument that leaves checkpointing to `spare_memory`."""


def enable_checkpointing(model: PreTrainedModel, kwargs: dict[str, object]) -> None:
    """Switch on checkpointing for all layers of `model`. kwargs: those of `torch.utils.checkpoint.checkpoint`."""
    getattr(model, f"{_NAME}_enable")(kwargs)


def is_checkpointing(model: PreTrainedModel) -> bool:
    """Return whether `model` recomputes activations in the backward pass."""
    return getattr(model, f"is_{_NAME}")


def cache_layers(config: PreTrainedConfig) -> list[tuple[str, dict[str, Any]]]:
    """Return the kind and the cache arguments of each layer of a language model."""
    layers: Any = get_layer_types_and_kwargs  # its signature also differs between versions
    kinds, details = layers(config)
    if isinstance(details, dict):  # before transformers 5.23: one dictionary for all layers
        window = {"sliding_window": details.pop("sliding_window", None)}
        return [(kind, details if kind == "full_attention" else details | window) for kind in kinds]
    return list(zip(kinds, details, strict=True))


def layers_of(text: PreTrainedConfig) -> Sequence[PreTrainedConfig]:
    """Return the configuration of each layer of a language model. Before transformers 5.23 all layers share one."""
    return getattr(text, "per_layer_config", None) or [text] * text.num_hidden_layers


def returns_router_logits(model: PreTrainedModel) -> bool:
    """Return whether a model has routers and returns their logits. Granite's do so since transformers 5.19."""
    parts = (part for part in model.modules() if isinstance(part, PreTrainedModel))
    recorded = ((part._can_record_outputs or {}).get("router_logits", []) for part in parts)
    each = (one for found in recorded for one in (found if isinstance(found, list) else [found]))
    # Llama 4 of transformers 5.16 has a class instead of a recorder, and returns no loss of routers.
    kinds = tuple(one.target_class for one in each if hasattr(one, "target_class"))
    return any(isinstance(module, kinds) for module in model.modules())


def typed_by_tools(template: object) -> object:
    """Return a response template that leaves the types of XML parameters to the tools' schemas.

    Before TRL 1.15, the templates parsed each value as JSON, so the text "7" became a number.
    """
    guessing = {"name": "json", "args": {"allow_non_json": True}}
    return json.loads(json.dumps(template).replace(json.dumps(guessing), json.dumps({"name": "text"})))

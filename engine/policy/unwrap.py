"""The model inside its wrappers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel


def base_of(model: nn.Module) -> PreTrainedModel:
    """Return the transformers model in a PEFT wrapper (with adapters in place), or the model itself."""
    unwrap = getattr(model, "get_base_model", None)
    base: Any = unwrap() if callable(unwrap) else model
    return base


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the embeddings."""
    embeddings: Any = base_of(model).get_input_embeddings()
    return embeddings.weight.device


def vocabulary_of(model: nn.Module) -> int:
    """Return the width of the logits, V."""
    return int(base_of(model).config.get_text_config(decoder=True).vocab_size)

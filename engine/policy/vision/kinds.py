"""Finds out which models take images, and which of their parts make features. Light: it needs only a config."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def takes_images(config: PreTrainedConfig) -> bool:
    """Return whether a model of this configuration takes images and text."""
    return type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and getattr(config, "vision_config", None) is not None


def apart_from_language(model: PreTrainedModel) -> list[nn.Module]:
    """Return the towers and projections of a vision-language model."""
    body: Any = model.base_model
    language = body.get_decoder()
    return [child for child in body.children() if child is not language]

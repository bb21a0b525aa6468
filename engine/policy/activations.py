"""Gradient checkpointing that recomputes only where the saved memory is worth it.

If the activations of a micro-batch fit (`room`), all of them are kept. To make them fit, `memory.micro_batch` reduces
micro-batches down to one trajectory, because a second forward pass costs more than smaller products. Otherwise plain
checkpointing would keep each layer's input and run the whole layer again in the backward pass. This module still keeps:

- the last layer: its backward pass comes first, so its activations are needed at once.
- attention: its output is as small as the layer's input, and at long context computing it costs as much as the rest of
  the layer (selective activation checkpointing; Korthikanti et al., arXiv 2205.05198).
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from .precision import computed_in
from .unwrap import device_of
from .versions import enable_checkpointing, layers_of

_KERNELS = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)
ATTENTION = frozenset(getattr(torch.ops.aten, name).default for name in _KERNELS if hasattr(torch.ops.aten, name))
"""The operators behind torch's `scaled_dot_product_attention`. Not every build has all of them."""


KEPT = 1 << 30
"""Bytes of main memory that the activations of a micro-batch may take before layers are recomputed, for the setting
`auto`."""


def room(device: str) -> int:
    """Return the bytes that the activations of a micro-batch may take. device: cpu, cuda or mps. A GPU offers a quarter
    of its memory, the same in every process: a second forward pass there takes as much time in Python as the first."""
    if device == "cuda" and torch.cuda.is_available():
        return max(KEPT, torch.cuda.mem_get_info()[1] // 4)
    return KEPT


def spare_memory(model: PreTrainedModel, setting: bool | Literal["auto"], tokens: int) -> None:
    """Apply `model.gradient_checkpointing`. tokens: those of a micro-batch."""
    if runs_again(setting, tokens * bytes_of_token(model), device_of(model).type):
        checkpoint_activations(model)


def runs_again(setting: bool | Literal["auto"], taken: int, device: str) -> bool:
    """Return whether to recompute layers. taken: bytes of all activations of a micro-batch."""
    return taken > room(device) if setting == "auto" else setting


def bytes_of_token(model: PreTrainedModel) -> int:
    """Return the bytes of the activations of one token in all layers."""
    text = model.config.get_text_config(decoder=True)
    return text.num_hidden_layers * numbers_of_layer(text) * computed_in(model).itemsize


def numbers_of_layer(text: PreTrainedConfig) -> int:
    """Estimate how many numbers per token the widest layer keeps without recomputation: inputs and outputs of norms,
    projections and attention, and the activations inside the MLP. text: a language model's configuration."""
    widths = [getattr(layer, "intermediate_size", None) or 4 * text.hidden_size for layer in layers_of(text)]
    return 8 * text.hidden_size + 4 * int(np.max(widths))  # a width may be a list with one per layer


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Switch gradient checkpointing on for all layers of `model` but the last, keeping the outputs of attention.

    Leave a trainer's own `activation_checkpointing` argument off: it would replace this with the plain form.
    """
    contexts = partial(create_selective_checkpoint_contexts, _policy)
    enable_checkpointing(model, {"use_reentrant": False, "context_fn": contexts})
    layers = decoder_layers(model)
    if len(layers) > 1:
        layers[-1].gradient_checkpointing = False


def decoder_layers(model: nn.Module) -> list[GradientCheckpointingLayer]:
    """Return the layers of `model` in running order, a vision tower's first."""
    return [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]


def _policy(context: object, op: object, *args: object, **kwargs: object) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in ATTENTION else CheckpointPolicy.PREFER_RECOMPUTE

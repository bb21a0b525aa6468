"""`python -m grpo_tui.engine.policy.memory CONFIG`: the memory that training needs, from the model's config.

Only `config.json` is read. The model is built on torch's meta device, which holds no weights. The parts are listed, so
that the user sees which setting to lower. This is an estimate: allocators keep more.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from ...configs.schema import RunConfig
    from ...configs.sections.training import TrainingConfig

GIB = 2**30
ADAPTER_BYTES = 16
"""Bytes per parameter of an adapter: itself, its gradient and Adam's two moments, all in float32."""
FULL_BYTES = 12
"""Bytes that training adds per weight of the model: its gradient and Adam's moments, at most in float32."""
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a 4-bit weight, with one scale per 64 weights, and one per 256 scales."""
OVERHEAD = GIB
"""Additional bytes for the CUDA context, kernels and the allocator, or for Python and its libraries."""


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model that determine its memory.

    linear: parameters of linear layers, which can be in 4 bits. adapters: LoRA parameters on the language model's
    linear layers, per unit of rank. vision: parameters of the frozen vision tower and its projection. vision_adapters:
    those of LoRA on it. All counts are of parameters.
    """

    parameters: int
    linear: int
    adapters: int
    vision: int
    vision_adapters: int
    layers: int
    hidden: int
    layer: int
    """Numbers per token that a layer keeps for the backward pass."""
    cached: int
    """Numbers per token in the KV cache, all layers together."""
    vocabulary: int


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes by part. `training` and `acting` alternate. `both` is always present."""

    both: dict[str, float]
    acting: dict[str, float]
    training: dict[str, float]

    @property
    def peak(self) -> float:
        return sum(self.both.values()) + max(sum(self.acting.values()), sum(self.training.values()))


def shape_of(config: PreTrainedConfig) -> ModelShape:
    """Return the shape of a causal language model, including the vision tower if it takes images. Raises ValueError for
    a config of another kind."""
    import torch
    from torch import nn
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.pytorch_utils import Conv1D

    from .activations import numbers_of_layer
    from .versions import layers_of
    from .vision.kinds import apart_from_language, takes_images

    sees = takes_images(config)
    with torch.device("meta"):
        model = (AutoModelForImageTextToText if sees else AutoModelForCausalLM).from_config(config)
    text = config.get_text_config()
    output = model.get_output_embeddings()
    vision_modules = {m for part in (apart_from_language(model) if sees else ()) for m in part.modules()}
    linear = [m for m in model.modules() if isinstance(m, (nn.Linear, Conv1D)) and m is not output]
    heads = getattr(text, "num_attention_heads", 0)  # a recurrent model such as Mamba caches no keys
    # Falcon's newer architecture repeats its keys for every head before it caches them
    shared = getattr(text, "multi_query", False) and not getattr(text, "new_decoder_architecture", False)
    keys = [
        (1 if shared else getattr(layer, "num_key_value_heads", None) or heads)
        * (getattr(layer, "head_dim", None) or text.hidden_size // max(heads, 1))
        for layer in layers_of(text)
    ]
    return ModelShape(
        parameters=sum(p.numel() for p in model.parameters()),
        linear=sum(m.weight.numel() for m in linear),
        adapters=sum(sum(m.weight.shape) for m in linear if m not in vision_modules),
        vision_adapters=sum(sum(m.weight.shape) for m in linear if m in vision_modules),
        vision=sum(p.numel() for m in vision_modules for p in m.parameters(recurse=False)),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        layer=numbers_of_layer(text),
        cached=2 * sum(keys),
        vocabulary=text.vocab_size,
    )


def micro_batch(rows: int, training: TrainingConfig, fitting: int | None = None) -> int:
    """Return the trajectories of a backward pass: the largest divisor of `rows` within the limit.

    fitting: the trajectories whose activations fit. If these are fewer than the limit, return the largest micro-batch
    that fits, if possible of whole groups: a group computes its prompt once.
    """
    limit = training.micro_batch_size or max(training.micro_batch_tokens // training.max_trajectory_tokens, 1)
    sizes = [d for d in range(1, min(rows, limit) + 1) if rows % d == 0]
    if fitting is not None and training.micro_batch_size is None and sizes[-1] > fitting:
        fit = [d for d in sizes if d <= fitting]
        sizes = [d for d in fit if d % training.num_generations == 0] or fit or sizes
    return sizes[-1]


def need(shape: ModelShape, config: RunConfig) -> MemoryNeed:
    """Estimate the memory of one device for a model of this shape."""
    from ...configs.model_facts import device_of
    from .activations import room, runs_again
    from .token_scores import DENSE_LOGITS
    from .vocabulary_head import TILE, TILE_GPU

    model, training = config.model, config.training
    size, computed, sampled = (BYTES[name] for name in (model.weights, model.compute, model.sampling))
    rows = training.prompts_per_step * training.num_generations
    length = training.max_trajectory_tokens
    device, token = device_of(model.device), shape.layers * shape.layer * computed
    limit = room(device) // (token * length) if model.gradient_checkpointing == "auto" else None
    tokens = micro_batch(rows, training, limit) * length
    weights = shape.parameters * size
    if model.quantization is not None:  # 4-bit weights are never copied
        size, weights = 0, shape.linear * NF4_BYTES + (shape.parameters - shape.linear) * computed
    if model.lora is None:
        learnt = shape.parameters - shape.vision
        trained, state, reference = "gradients and optimiser of all weights", learnt * FULL_BYTES, weights
    else:
        adapters = (shape.adapters + shape.vision_adapters * model.lora.vision) * model.lora.r
        trained = f"adapters of rank {model.lora.r}, their gradients and optimiser"
        state, reference = adapters * ADAPTER_BYTES, adapters * 4
    both: dict[str, float] = {
        f"weights ({shape.parameters / 1e6:,.0f} million in {model.quantization or model.weights})": weights,
        trained: state,
    }
    if training.beta > 0 or training.beta_mode == "auto":
        both["the frozen reference"] = reference
    recomputes = runs_again(model.gradient_checkpointing, tokens * token, device)
    on_gpu = device != "cpu"  # on a GPU a strip is a whole tile, in float32
    tile = TILE_GPU * (computed + 12) if on_gpu else TILE * computed
    kept = shape.layers * 2 * shape.hidden if recomputes else shape.layers * shape.layer
    acting: dict[str, float] = {f"cache of {rows} rollouts of {length} tokens": rows * length * shape.cached * sampled}
    backward: dict[str, float] = {
        f"activations of {tokens:,} tokens": tokens * (kept + 2 * shape.layer) * computed,
        "logits": min(tokens * shape.vocabulary * 12, DENSE_LOGITS * 12) if computed == 4 else tile,
    }
    if size > sampled:
        acting[f"copy of the weights in {model.sampling}"] = shape.parameters * sampled
    if size > computed:
        backward[f"copy of the weights in {model.compute}"] = shape.parameters * computed
    if sampled < 4 and device_of(model.device) == "cpu":
        acting["vocabulary head in float32"] = shape.hidden * shape.vocabulary * 4
    if config.rollouts.engine != "transformers":
        acting = {}  # the servers hold the cache
    return MemoryNeed(both=both, acting=acting, training=backward)


def told(config: RunConfig) -> Iterator[str]:
    """Yield the lines to print. Raises ModelLoadError."""
    from ...configs.model_facts import device_of
    from .sources import ModelLoadError, explain, load_known

    known = load_known(config.model, "config of")
    try:
        shape = shape_of(known)
    except Exception as error:
        raise ModelLoadError(explain(config.model.base, error, "config of")) from error
    found = need(shape, config)
    for name, bytes_ in found.both.items():
        yield f"{bytes_ / GIB:8.1f} GiB  {name}"
    for phase, parts in (("while generating rollouts", found.acting), ("in a backward pass", found.training)):
        for name, bytes_ in parts.items():
            yield f"{bytes_ / GIB:8.1f} GiB  {phase}: {name}"
    total = found.peak + OVERHEAD
    code = "Python and torch" if device_of(config.model.device) == "cpu" else "CUDA"
    yield (
        f"{total / GIB:8.1f} GiB  at the peak, about (with 1 GiB for {code}): {config.training.prompts_per_step} × "
        f"{config.training.num_generations} rollouts of at most {config.training.max_trajectory_tokens} tokens"
    )


def main(arguments: Sequence[str]) -> int:
    """Print the parts. Returns 1 after one sentence on standard error if there is no config."""
    from ...configs.errors import GrpoTuiError
    from ...configs.loading import load_config

    try:
        for line in told(load_config(arguments[0])):
            print(line)
    except GrpoTuiError as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

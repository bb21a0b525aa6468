"""LoRA layers that multiply once: y = x (W + s B A)ᵀ instead of y = x Wᵀ + s (x Aᵀ) Bᵀ.

The two are equal, up to the order of floating-point sums. The second costs three products, a scaling and a sum for
every layer and token. For small layers, and when decoding token by token, that is most of the time. Nothing is merged
into the model's own weights, so nothing drifts:

- `merged_weights(model)`, without gradient: computes the sums once, valid until the end of the block. For rollouts and
  the reference pass, as long as the copies stay small.
- `MergedWeights(model)`: the same sums for several blocks between two changes of the adapters. For serving.
- `merged_weights(model, gradient=True)`: each call computes the sum, and autograd propagates its gradient to A and B.
  The gradient of the sum is a dense [out, in] matrix, so this pays off only for layers that are small compared with the
  number of tokens.

Only plain LoRA on `nn.Linear` in float32: half precision would round the sum itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import Tensor, nn
from torch.nn import functional as F

from .patches import patched

SMALL_LAYER = 512 * 512
"""The largest weight, in elements, for which a dense gradient is cheaper than the two thin products."""

SMALL_COPY = 256 << 20
"""The most bytes that all merged copies may take together."""


@contextlib.contextmanager
def merged_weights(model: nn.Module, *, gradient: bool = False) -> Iterator[int]:
    """Let LoRA layers multiply once in the block; yields their number. Do not switch adapters in the block.

    With gradient checkpointing, run the backward pass inside as well.
    """
    if not gradient:
        with MergedWeights(model).in_place() as number:
            yield number
        return
    layers = [m for m in model.modules() if _mergeable(m)]
    layers = [m for m in layers if _base(m).weight.numel() <= SMALL_LAYER and _base(m).weight.device.type == "cpu"]
    with contextlib.ExitStack() as stack:
        for layer in layers:
            stack.enter_context(patched(layer, "forward", _summing(layer)))
        yield len(layers)


class MergedWeights:
    """The sums of a model's current adapters; none if they would take more than `most` bytes together."""

    def __init__(self, model: nn.Module, most: int = SMALL_COPY) -> None:
        layers = [m for m in model.modules() if _mergeable(m)]
        if sum(_base(m).weight.numel() * 4 for m in layers) > most:
            layers = []
        self._forwards = [(layer, _fixed(layer)) for layer in layers]

    @contextlib.contextmanager
    def in_place(self) -> Iterator[int]:
        """Let the layers multiply by the sums in the block; yields their number."""
        with contextlib.ExitStack() as stack:
            for layer, forward in self._forwards:
                stack.enter_context(patched(layer, "forward", forward))
            yield len(self._forwards)


def _base(layer: Any) -> nn.Linear:
    return layer.base_layer


def _sum(layer: Any) -> Tensor:
    """Return W + Σ s B A over the active adapters, [out, in]."""
    weight = _base(layer).weight
    if layer.disable_adapters:
        return weight
    for name in layer.active_adapters:
        if name in layer.lora_A:
            a, b = layer.lora_A[name].weight, layer.lora_B[name].weight
            weight = torch.addmm(weight.to(b.dtype), b, a, alpha=layer.scaling[name])
    return weight


class AdaptedHead(LoraLinear):
    """An output layer with adapters. Packed scores read its `weight`, which PEFT gives without them. (TRL 1.16 refuses
    to train such a layer.)"""

    weight = property(_sum)  # type: ignore[assignment]


def _summing(layer: nn.Module) -> Callable[..., Tensor]:
    def forward(x: Tensor, *args: object, **kwargs: object) -> Tensor:
        return F.linear(x, _sum(layer), _base(layer).bias)

    return forward


def _fixed(layer: nn.Module) -> Callable[..., Tensor]:
    with torch.no_grad():
        weight, bias = _sum(layer), _base(layer).bias

    def forward(x: Tensor, *args: object, **kwargs: object) -> Tensor:
        return F.linear(x, weight, bias)

    return forward


def _mergeable(module: nn.Module) -> bool:
    if type(module) is not LoraLinear or type(module.base_layer) is not nn.Linear:
        return False
    layer: Any = module
    names = [n for n in layer.active_adapters if n in layer.lora_A]
    plain = all(
        n not in layer.lora_variant
        and not layer.lora_bias.get(n, False)
        and isinstance(layer.lora_dropout[n], nn.Identity)
        and layer.lora_A[n].weight.dtype == torch.float32
        for n in names
    )
    return plain and not layer.merged and not layer.fan_in_fan_out and _base(layer).weight.dtype == torch.float32

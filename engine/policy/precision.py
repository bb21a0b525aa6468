"""The number formats of a policy: one to store it, one to compute in, one to sample in.

bfloat16 has 8 significant bits. Rounding a sum to it loses every change below 1/512 of the sum. So sums that must
preserve small changes stay in float32, and only products are computed in half precision:

- **adapters**: y = x Wᵀ + s (x Aᵀ) Bᵀ is accumulated in float32 and rounded once. peft rounds x Wᵀ first and adds the
  adapter to the rounded value, which always loses a change below half a unit in the last place. Merging into bfloat16
  weights loses it in the same way. On SmolLM2, with adapters that moved the policy by 0.129 nats, peft delivers 0.089,
  merging 0.061, and one rounding 0.133 (docs/benchmarks.md).
- **the residual stream and norms**: float32 from the embeddings to the last norm.
- **logits**: float32. A logit of 20 in bfloat16 is off by up to 0.06.

A pure float32 policy is left unchanged.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from ...configs.sections.model import ModelConfig
from .patches import patched
from .unwrap import base_of, device_of

Parts = dict[str, tuple[Tensor, Tensor]]
"""A and s B of each adapter by name."""

PATIENCE = 8
"""Products in the layout of `nn.Linear` before another layout is made, which takes as long as a few products."""
LARGEST = 1 << 30
"""The largest model, in bytes of weights, that also keeps its weights in a second layout."""


class Arithmetic:
    """The format a model currently computes in: `compute`, or `sampling` inside `acting`. All layers share it."""

    def __init__(self, compute: torch.dtype, sampling: torch.dtype) -> None:
        self.now = compute
        self.sampling = sampling

    @staticmethod
    def of(model: nn.Module) -> Arithmetic | None:
        """Return the model's object, or None if it computes in its loaded format."""
        return getattr(base_of(model), "arithmetic", None)


def computed_in(model: nn.Module) -> torch.dtype:
    """Return the format of this model's products."""
    arithmetic = Arithmetic.of(model)
    return base_of(model).dtype if arithmetic is None else arithmetic.now  # type: ignore[return-value]


def set_arithmetic(model: nn.Module, config: ModelConfig) -> None:
    """Apply the formats of `config` to a loaded model with its adapters, and to its copies."""
    formats = config.weights, config.compute, config.sampling
    if set(formats) == {"float32"} or config.quantization is not None:
        return
    base: PreTrainedModel = base_of(model)  # type: ignore[assignment]
    compute, sampling = getattr(torch, config.compute), getattr(torch, config.sampling)
    arithmetic = base.arithmetic = Arithmetic(compute, sampling)  # type: ignore[assignment]
    head = base.get_output_embeddings()
    converting: set[Any] = {head}
    """Layers that convert their weights in each call."""
    for module in base.modules():
        if type(module) is LoraLinear and type(module.base_layer) is nn.Linear:
            module.arithmetic = arithmetic  # type: ignore[assignment]
            module.forward = types.MethodType(_lora_linear, module)
            converting.add(module.base_layer)
    for module in base.modules():
        # Autocast converts the weights of products, but not to float32. All else is float32: norms, and a convolution
        # over patches, whose format SmolVLM takes for the features.
        for parameter in () if module in converting else module.parameters(recurse=False):
            product = isinstance(module, nn.Linear) or parameter.dim() in (2, 3)
            if compute == torch.float32 or not product:
                parameter.data = parameter.data.float()
    # Bound methods, not closures: a deep copy of the model gets its own.
    body: nn.Module = base.base_model
    body.arithmetic = arithmetic  # type: ignore[assignment]
    body.forward = types.MethodType(_body, body)
    tokens = base.get_input_embeddings()
    tokens.forward = types.MethodType(_float_embedding, tokens)
    if type(head) is nn.Linear:
        head.arithmetic = arithmetic  # type: ignore[assignment]
        head.forward = types.MethodType(_float_logits, head)


@contextlib.contextmanager
def sampling_arithmetic(model: nn.Module) -> Iterator[None]:
    """Use the sampling format in the block, without gradients. Weights are converted once."""
    arithmetic = Arithmetic.of(model)
    if arithmetic is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(patched(arithmetic, "now", arithmetic.sampling))
        base = base_of(model)
        head = base.get_output_embeddings()  # type: ignore[operator]
        pack = packs(base, arithmetic.now)
        for module in base.modules():
            if type(module) is LoraLinear and hasattr(module, "arithmetic"):
                stack.enter_context(patched(module, "fixed", FixedWeight(*_parts(module), pack)))
            elif type(module) is nn.Linear and module is not head and (pack or module.weight.dtype != arithmetic.now):
                weight, bias = module.weight.to(arithmetic.now), _to(module.bias, arithmetic.now)
                stack.enter_context(patched(module, "forward", FixedWeight(weight, bias, {}, pack)))
        if type(head) is nn.Linear and head.weight.device.type == "cpu":
            stack.enter_context(patched(head, "converted", head.weight.to(arithmetic.now).float()))
        yield


def float_product(x: Tensor, weight: Tensor, computed: torch.dtype) -> Tensor:
    """Return x Wᵀ with factors in `computed` and sums in float32: x [..., H], W [V, H] → float32 [..., V].

    weight: in any format; if float32, its values may be more precise than `computed`.
    """
    x = x.to(computed)
    if x.device.type == "cuda" and computed != torch.float32 and not torch.is_grad_enabled():
        product = torch.mm(x.flatten(0, -2), weight.to(computed).t(), out_dtype=torch.float32)
        return product.view(*x.shape[:-1], -1)
    if computed != torch.bfloat16 or x.device.type != "cpu":
        return F.linear(x.float(), weight.float())
    products: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before, products.fp32_precision = products.fp32_precision, "bf16"
    try:
        return F.linear(x.float(), weight.float())
    finally:
        products.fp32_precision = before


def _body(self: Any, *args: Any, **kwargs: Any) -> Any:
    with half_products(self):
        return type(self).forward(self, *args, **kwargs)


def half_products(body: Any) -> contextlib.AbstractContextManager[object]:
    """Return a context with all products of a model's layers in half precision, not only those of `nn.Linear`. body:
    the model without its output layer."""
    if (arithmetic := getattr(body, "arithmetic", None)) is None:
        return contextlib.nullcontext()
    device = next(body.parameters()).device.type
    return torch.autocast(device, dtype=arithmetic.now, enabled=arithmetic.now != torch.float32)


def _float_embedding(self: Any, token_ids: Tensor) -> Tensor:
    return type(self).forward(self, token_ids).float()


def _float_logits(self: Any, hidden: Tensor) -> Tensor:
    weight = getattr(self, "converted", None)
    if weight is None:
        weight = self.weight.to(self.arithmetic.now)
    with torch.autocast(hidden.device.type, enabled=False):
        logits = float_product(hidden, weight, self.arithmetic.now)
    return logits if self.bias is None else logits + self.bias.float()


def _lora_linear(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Return x Wᵀ + b + Σ s (x Aᵀ) Bᵀ, rounded once: x [..., in] → [..., out] in the current format."""
    names = [] if self.disable_adapters else [n for n in self.active_adapters if n in self.lora_A]
    if self.merged or any(n in self.lora_variant or self.lora_bias.get(n, False) for n in names):
        return type(self).forward(self, x, *args, **kwargs)
    fixed = getattr(self, "fixed", None)
    if fixed is not None and list(fixed.parts) == names:
        return fixed(x)
    weight, bias, parts = _parts(self)
    flat = x.to(weight.dtype).flatten(0, -2)
    y = bias
    for name in names:
        a, b = parts[name]
        y = add_product(y, F.linear(self.lora_dropout[name](flat), a), b)
    return add_product(y, flat, weight).view(*x.shape[:-1], len(weight))


def _parts(layer: Any) -> tuple[Tensor, Tensor | None, Parts]:
    """Return W, b, and A and s B of each active adapter, in the current format."""
    now, base = layer.arithmetic.now, layer.base_layer
    names = [n for n in layer.active_adapters if n in layer.lora_A]
    parts = {n: (layer.lora_A[n].weight.to(now), (layer.lora_B[n].weight * layer.scaling[n]).to(now)) for n in names}
    return base.weight.to(now), _to(base.bias, now), parts


def _to(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if tensor is None else tensor.to(dtype)


def packs(model: nn.Module, dtype: torch.dtype) -> bool:
    """Return whether to keep the weights of this model's products in a second layout."""
    if dtype != torch.bfloat16 or device_of(model).type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    size = sum(m.weight.numel() * dtype.itemsize for m in model.modules() if type(m) is nn.Linear)
    return size <= LARGEST and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class FixedWeight:
    """x [..., in] → x Wᵀ + b + Σ s (x Aᵀ) Bᵀ [..., out], rounded once.

    W [out, in], b [out] and the adapters' A [r, in] and s B [out, r] are all in the format of the product. There is no
    gradient.

    `F.linear` converts W to oneDNN's layout at each call. For the few rows of decoding, this takes as long as the
    product itself. With `packs`, [W, s B] is kept in that layout as one matrix.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, parts: Parts, packs: bool) -> None:
        self.bias, self.parts = bias, parts
        self._weight: Tensor | None = weight
        self._thin = torch.cat([a for a, _ in parts.values()]) if parts else None
        self._packed: Tensor | None = None
        self._remaining = PATIENCE if packs else -1

    def __call__(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        y = self._packed_product(flat) if self._remaining == 0 else self._product(flat)
        return y.view(*x.shape[:-1], y.shape[-1])

    def _product(self, flat: Tensor) -> Tensor:
        assert self._weight is not None
        self._remaining -= 1
        flat, y = flat.to(self._weight.dtype), self.bias
        for a, b in self.parts.values():
            y = add_product(y, F.linear(flat, a), b)
        if y is None or y.dim() == 1:
            return F.linear(flat, self._weight, y)
        return y.addmm_(flat, self._weight.t())  # `addmm` copies y first

    def _packed_product(self, flat: Tensor) -> Tensor:
        if self._weight is not None:
            weight = torch.cat([self._weight, *(b for _, b in self.parts.values())], 1)
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, len(flat))
            self._weight = None  # it may be a copy
        flat = flat.bfloat16()
        if self._thin is not None:
            flat = torch.cat([flat, F.linear(flat, self._thin)], 1)
        return torch.ops.mkldnn._linear_pointwise(flat, self._packed, self.bias, "none", [], "")


def add_product(y: Tensor | None, x: Tensor, weight: Tensor) -> Tensor:
    """Return y + x Wᵀ: x [M, in], W [out, in], y [M, out], [out] (a bias) or None."""
    return F.linear(x, weight, y) if y is None or y.dim() == 1 else torch.addmm(y, x, weight.t())

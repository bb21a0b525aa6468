"""Products with constant weights, for decoding."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .unwrap import device_of

Parts = dict[str, tuple[Tensor, Tensor]]
"""A and s B of each adapter by name."""

PATIENCE = 8
"""Products in the layout of `nn.Linear` before another layout is made, which takes as long as a few products."""
LARGEST = 1 << 30
"""The largest model, in bytes of weights, that also keeps its weights in a second layout."""


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

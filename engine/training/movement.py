"""How far the trained weights have moved, measured against the learning rate."""

from __future__ import annotations

from statistics import median

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

SAMPLES = 1024
"""Weights of each tensor that are followed. Of divided weights, those of the main process."""


class Movement:
    """Follows some weights of each trainable tensor.

    Adam changes a weight by about the learning rate in each update (Kingma and Ba, arXiv 1412.6980, section 2.1). The
    mean change divided by the sum of the learning rates is therefore near 1 at first and falls as updates cancel. It
    is near 0 where updates are lost: rounded away in bfloat16, frozen, or not given to the optimiser.
    """

    def __init__(self, model: nn.Module) -> None:
        self._weights = [p for p in model.parameters() if p.requires_grad]
        self._start = [_sample(p) for p in self._weights]
        self._rates = 0.0

    def measure(self, learning_rate: float, grad_norm: float) -> float | None:
        """The median over tensors of the mean change, as a share of the sum of learning rates of updates that had a
        gradient. None before the first of them."""
        self._rates += learning_rate if grad_norm > 0 else 0.0
        if not self._weights or self._rates == 0:
            return None
        changes = zip(self._weights, self._start, strict=True)
        return median(float((_sample(p) - start).abs().mean()) for p, start in changes) / self._rates


def _sample(weight: Tensor) -> Tensor:
    flat = (weight.to_local() if isinstance(weight, DTensor) else weight).detach().flatten()
    return flat[:: max(1, len(flat) // SAMPLES)][:SAMPLES].to("cpu", torch.float32, copy=True)

"""Attention in half precision on a CPU, with a backward pass in float32.

torch's backward kernel for bfloat16 rounds its intermediate sums, and is slow for short rows. The forward pass is
torch's own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def backward_in_float32(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None) -> bool:
    """Return whether `HalfAttention` applies: on a CPU, with a gradient, where torch would use these kernels itself.

    Not every torch supports shared keys, and none supports keys and values of different sizes.
    """
    half = query.dtype in (torch.bfloat16, torch.float16) and query.device.type == "cpu"
    if not half or not torch.is_grad_enabled() or not query.requires_grad:
        return False
    shared = query.shape[1] != key.shape[1]
    chosen = torch.ops.aten._fused_sdp_choice(query, key, value, allowed, 0.0, allowed is None, enable_gqa=shared)
    return chosen == SDPBackend.FLASH_ATTENTION.value


class HalfAttention(torch.autograd.Function):
    """query [b, h, L, d], key and value [b, k, S, d], allowed bool [b, 1, L, S] (None: causal) → [b, h, L, d]."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, scale: float | None
    ) -> Tensor:
        """Keep the inputs, the output, and the logarithm of each query's sum of weights."""
        out, log_sum = FORWARD(
            query, key, value, 0.0, allowed is None, attn_mask=_added(allowed, query.dtype), scale=scale
        )
        ctx.save_for_backward(query, key, value, out, log_sum, allowed)
        ctx.scale = scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Convert everything to float32. `log_sum` is in float32 in either format."""
        query, key, value, out, log_sum, allowed = ctx.saved_tensors
        inputs = (x.float() for x in (grad, query, key, value, out))
        mask = _added(allowed, torch.float32)
        grads = BACKWARD(*inputs, log_sum, 0.0, allowed is None, attn_mask=mask, scale=ctx.scale)
        return *(g.to(query.dtype) for g in grads), None, None


def _added(allowed: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return 0 where attention is allowed and −∞ elsewhere."""
    if allowed is None:
        return None
    return torch.zeros_like(allowed, dtype=dtype).masked_fill_(~allowed, -torch.inf)

"""Attention of a few new tokens over a KV cache, fast on the CPU; registered with transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

IMPLEMENTATION = "grpo_tui_cached"


def cached_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend from query [n, h, q, d] to key and value [n, k, L, d] → [n, q, h, d], without copies for shared keys.

    attention_mask: added to the scores, [n, 1, q, L]. There is no dropout.
    """
    if kwargs.get("softcap") is not None or kwargs.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    query = query.to(value.dtype)
    n, heads, tokens, _ = query.shape
    shared = key.shape[1]
    if tokens == 1:  # heads that share keys are as good as further queries: the keys are read once
        query = query.reshape(n, shared, heads // shared, -1)
    attended = F.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=tokens > 1 and heads != shared
    )
    return attended.reshape(n, heads, tokens, -1).transpose(1, 2), None


AttentionInterface.register(IMPLEMENTATION, cached_attention)

"""One forward pass of a causal `transformers` language model over a `RowCache`, with fast attention over its keys."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn import functional as F
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ...configs.errors import GrpoTuiError
from ..policy.precision import computed_in
from ..policy.prepared import decoding
from ..policy.sources import ModelLoadError
from ..policy.unwrap import base_of, device_of
from ..policy.versions import cache_layers
from ..policy.vision.inputs import VisionModel
from .row_cache import RowCache
from .seen_rows import SeenPass

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
    n, heads, tokens, _ = query.shape
    shared = key.shape[1]
    copies = query.device.type == "cuda" and tokens > 1 and heads != shared  # no fast kernel shares keys there
    if copies or kwargs.get("softcap") is not None or kwargs.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    query = query.to(value.dtype)
    if attention_mask is not None and attention_mask.is_floating_point():
        attention_mask = attention_mask.to(query.dtype)  # layers in 4 bits may compute in another format
    if tokens == 1:  # heads that share keys can act as additional queries, so the keys are read only once
        query = query.reshape(n, shared, heads // shared, -1)
    attended = F.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=tokens > 1 and heads != shared
    )
    return attended.reshape(n, heads, tokens, -1).transpose(1, 2), None


AttentionInterface.register(IMPLEMENTATION, cached_attention)


class UnsupportedModelError(GrpoTuiError, ValueError):
    """The model cannot act here."""


class Decoder:
    """The model behind an agent, called with positions and masks for rows of different lengths."""

    def __init__(self, model: torch.nn.Module):
        self.model = model
        # An adapter's wrapper adds a call per step, and its layers are already in the base model.
        self.base = base_of(model)
        config = self.base.config.get_text_config(decoder=True)
        layers = cache_layers(config)
        self.windows: dict[str, int | None] = {}
        """The window of each kind of attention; None: unlimited."""
        self.others: list[str] = []
        """Kinds of layers with a state other than keys and values."""
        for kind, detail in layers:
            if kind in ("full_attention", "sliding_attention"):
                self.windows[kind] = detail.get("sliding_window")
            elif kind not in self.others:
                self.others.append(kind)
        self.seeing = VisionModel.of(self.base)
        self.config = config
        self.num_layers = len(layers)
        self._last_only = "logits_to_keep" in inspect.signature(self.base.forward).parameters

    @property
    def device(self) -> torch.device:
        return device_of(self.base)

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        cache: RowCache,
        kv_length: int,
        seen: SeenPass | None = None,
    ) -> torch.Tensor:
        """Feed tokens int64 `[n, q]` at positions `[n, q]` (negative: padding, on the left).

        kv_length: at least one more than the largest position. seen: the inputs for images among the tokens. Returns
        the logits `[n, V]` after the last token.
        """
        mask = cache.at(positions, kv_length)
        keep: dict[str, object] = {"logits_to_keep": 1} if self._last_only else {}
        position_ids = positions.clamp_min(0)
        if seen is not None:
            mask = seen.see(mask)
            keep |= seen.arguments
            position_ids = position_ids if seen.position_ids is None else seen.position_ids
        masks = {kind: self._mask(mask, positions, kv_length, window) for kind, window in self.windows.items()}
        output = self.base(
            input_ids=tokens,
            position_ids=position_ids,
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            past_key_values=cache,
            use_cache=True,
            **keep,
        )
        return output.logits[:, -1]

    def sampling(self, *, cached: bool) -> AbstractContextManager[None]:
        """Return a context with eval mode and no gradients. cached: with an attention that takes masks.

        Kernels without custom masks (such as flash-attention) are replaced by torch's `scaled_dot_product_attention`.
        """
        if not cached or self.config._attn_implementation == "eager":
            return decoding(self.model, None)
        return decoding(self.model, IMPLEMENTATION if self.device.type in ("cpu", "cuda") else "sdpa")

    def _mask(self, mask: torch.Tensor, positions: torch.Tensor, kv_length: int, window: int | None) -> torch.Tensor:
        if window is not None and window < kv_length:
            keys = torch.arange(kv_length, device=mask.device)
            mask = mask & (keys > positions.clamp_min(0)[..., None] - window)[:, None]
        if self.config._attn_implementation == "sdpa":
            return mask
        dtype = computed_in(self.base)
        return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)


def stop_ids_of(model: torch.nn.Module) -> tuple[int, ...]:
    """Return the stop ids of the model's generation configuration."""
    generation = getattr(base_of(model), "generation_config", None)
    ids = getattr(generation, "eos_token_id", None)
    if ids is None:
        return ()
    try:
        return tuple(map(int, ids)) if isinstance(ids, (list, tuple)) else (int(ids),)
    except (TypeError, ValueError) as error:
        where = f"eos_token_id of {base_of(model).name_or_path} (generation_config.json)"
        raise ModelLoadError(f"{where} is {ids!r}, but the ids of tokens are whole numbers") from error

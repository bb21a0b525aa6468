"""One forward pass over whole trajectories: the logits that predict the agent's tokens, and hidden states if wanted."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor


class AgentForward(NamedTuple):
    """logits: [A, V], row-major over the agent tokens; hidden: [B, T, D] last hidden states, None unless asked for."""

    logits: Tensor
    hidden: Tensor | None


def base_of(model: Any) -> Any:
    """The transformers model inside a PEFT wrapper (its adapters are in place), or the model itself."""
    unwrap = getattr(model, "get_base_model", None)
    return unwrap() if callable(unwrap) else model


def device_of(model: Any) -> torch.device:
    """Where tokens go in."""
    return base_of(model).get_input_embeddings().weight.device


def vocabulary_of(model: Any) -> int:
    """The width of the logits, V."""
    return int(base_of(model).config.get_text_config(decoder=True).vocab_size)


def forward_agent_tokens(
    model: Any, token_ids: Tensor, attention_mask: Tensor, agent_mask: Tensor, *, keep_hidden: bool = False
) -> AgentForward:
    """Logits at the position before each agent token.

    token_ids, attention_mask, agent_mask: [B, T], right-padded, no agent token first. Only positions that predict an
    agent token in some row go through the output layer, which for a large vocabulary is most of the cost.
    """
    base = base_of(model)
    device = device_of(model)
    token_ids, attention_mask = token_ids.to(device), attention_mask.to(device)
    predicted = agent_mask[:, 1:].to(device).bool()  # [B, T - 1], at the position that predicts
    columns = predicted.any(0).nonzero()[:, 0]
    chosen: dict[str, Any] = {}
    narrow = "logits_to_keep" in inspect.signature(base.forward).parameters
    if narrow:
        chosen["logits_to_keep"] = columns
    output = base(
        input_ids=token_ids,
        attention_mask=attention_mask.long(),
        use_cache=False,
        output_hidden_states=keep_hidden,
        **chosen,
    )
    logits = output.logits if narrow else output.logits[:, columns]
    return AgentForward(logits[predicted[:, columns]], output.hidden_states[-1] if keep_hidden else None)

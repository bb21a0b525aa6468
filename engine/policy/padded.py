"""The forward pass over padded rows, for every causal language model."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

from torch import Tensor, nn

from .unwrap import base_of, device_of


class AgentForward(NamedTuple):
    """logits: [A, V], row-major over the agent tokens; hidden: [B, T, D], last hidden states, None unless asked for;
    only what stands at the agent's tokens means something."""

    logits: Tensor
    hidden: Tensor | None


def padded_forward(
    model: nn.Module, token_ids: Tensor, attention_mask: Tensor, agent_mask: Tensor, keep_hidden: bool = False
) -> AgentForward:
    """See `forward_agent_tokens`; for every causal language model."""
    base, device = base_of(model), device_of(model)
    predicted = agent_mask[:, 1:].to(device)  # [B, T - 1], at the position that predicts
    columns = predicted.any(0).nonzero()[:, 0]
    chosen: dict[str, Any] = {}
    narrow = "logits_to_keep" in inspect.signature(base.forward).parameters
    if narrow:
        chosen["logits_to_keep"] = columns
    output = base(
        input_ids=token_ids.to(device),
        attention_mask=attention_mask.to(device).long(),
        use_cache=False,
        output_hidden_states=keep_hidden,
        **chosen,
    )
    logits = output.logits if narrow else output.logits[:, columns]
    return AgentForward(logits[predicted[:, columns]], output.hidden_states[-1] if keep_hidden else None)


def hidden_states(model: nn.Module, token_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Last hidden states of every token, [B, T, D]."""
    base, device = base_of(model), device_of(model)
    body: Any = base.base_model
    output = body(input_ids=token_ids.to(device), attention_mask=attention_mask.to(device).long(), use_cache=False)
    return output.last_hidden_state

"""One forward pass over whole trajectories: the logits that predict the agent's tokens, and hidden states if wanted."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .merged import merged_weights
from .norms import use_fast_norms
from .packed import add_packed_forward, agrees_with_plain, packed_mode, packed_states
from .packing import pack


class AgentForward(NamedTuple):
    """logits: [A, V], row-major over the agent tokens; hidden: [B, T, D], last hidden states, None unless asked for;
    only what stands at the agent's tokens means something."""

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


def use_packed_forward(model: Any) -> bool:
    """Let `forward_agent_tokens` run this model on packed rows, if it then gives the same log-probs; says whether.

    The candidates of a request share their prompt, and differ in length: packed, no token is computed twice.
    """
    base = base_of(model)
    use_fast_norms(base)
    add_packed_forward(base)
    base.is_packed = agrees_with_plain(base)
    return base.is_packed


def forward_agent_tokens(
    model: Any, token_ids: Tensor, attention_mask: Tensor, agent_mask: Tensor, *, keep_hidden: bool = False
) -> AgentForward:
    """Logits at the position before each agent token.

    token_ids, attention_mask, agent_mask: [B, T], right-padded, no agent token first. Only positions that predict an
    agent token go through the output layer, which for a large vocabulary is most of the cost.
    """
    base = base_of(model)
    run = _packed if getattr(base, "is_packed", False) and bool(agent_mask.any()) else padded_forward
    return run(model, token_ids, attention_mask, agent_mask.bool(), keep_hidden)


def hidden_states(model: Any, token_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Last hidden states of every token, [B, T, D]."""
    base, device = base_of(model), device_of(model)
    output = base.base_model(
        input_ids=token_ids.to(device), attention_mask=attention_mask.to(device).long(), use_cache=False
    )
    return output.last_hidden_state


def _packed(
    model: Any, token_ids: Tensor, attention_mask: Tensor, agent_mask: Tensor, keep_hidden: bool
) -> AgentForward:
    base, device = base_of(model), device_of(model)
    lengths = attention_mask.sum(1).tolist()
    rows, masks = token_ids.cpu().numpy(), agent_mask.cpu().numpy()
    packing = pack(
        [row[:n] for row, n in zip(rows, lengths, strict=True)],
        [mask[:n] for mask, n in zip(masks, lengths, strict=True)],
        token_ids.shape[1],
    ).to(device)
    with packed_mode(base), merged_weights(model, gradient=torch.is_grad_enabled()):
        states = packed_states(base, packing)
        logits = base.get_output_embeddings()(states.index_select(0, packing.before))
    hidden = None
    if keep_hidden:
        hidden = states.new_zeros(*token_ids.shape, states.shape[-1])
        hidden[packing.row, packing.column] = states.index_select(0, packing.itself)
    return AgentForward(logits, hidden)


def padded_forward(
    model: Any, token_ids: Tensor, attention_mask: Tensor, agent_mask: Tensor, keep_hidden: bool
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

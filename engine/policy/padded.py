"""The forward pass over padded rows, for every causal language model."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .sight.inputs import Images, SeeingModel
from .unwrap import base_of, device_of


class AgentForward(NamedTuple):
    """logits: [A, V], row-major over the agent tokens; hidden: [B, T, D], last hidden states, None unless asked for;
    only what stands at the agent's tokens means something."""

    logits: Tensor
    hidden: Tensor | None


def padded_forward(
    model: nn.Module,
    token_ids: Tensor,
    attention_mask: Tensor,
    agent_mask: Tensor,
    keep_hidden: bool = False,
    images: Sequence[Images] | None = None,
) -> AgentForward:
    """See `forward_agent_tokens`; for every causal language model. images[i]: those in row i, for one that sees."""
    base, device = base_of(model), device_of(model)
    predicted = agent_mask[:, 1:].to(device)  # [B, T - 1], at the position that predicts
    columns = predicted.any(0).nonzero()[:, 0]
    chosen: dict[str, Any] = {}
    narrow = "logits_to_keep" in inspect.signature(base.forward).parameters
    if narrow:
        chosen["logits_to_keep"] = columns
    chosen |= _seen(model, token_ids, images)
    output = base(
        input_ids=token_ids.to(device),
        attention_mask=attention_mask.to(device).long(),
        use_cache=False,
        output_hidden_states=keep_hidden,
        **chosen,
    )
    logits = output.logits if narrow else output.logits[:, columns]
    return AgentForward(logits[predicted[:, columns]], output.hidden_states[-1] if keep_hidden else None)


def padded_scores(
    model: nn.Module,
    inner: nn.Module,
    token_ids: Tensor,
    attention_mask: Tensor,
    agent_mask: Tensor,
    images: Sequence[Images],
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of the agent's tokens with gradient, both [B, T], 0 elsewhere; for a model that sees.

    model: what is called (it may be wrapped for several processes); inner: the same unwrapped. All on one device.
    """
    predicted = agent_mask[:, 1:].bool()
    columns = predicted.any(0).nonzero()[:, 0]
    logits = model(
        input_ids=token_ids,
        attention_mask=attention_mask,
        use_cache=False,
        logits_to_keep=columns,
        **_seen(inner, token_ids, images),
    ).logits
    log_p = torch.log_softmax(logits[predicted[:, columns]].float() / temperature, -1)
    target = token_ids[:, 1:][predicted]
    row, column = predicted.nonzero(as_tuple=True)
    empty = log_p.new_zeros(token_ids.shape)
    logprobs = empty.index_put((row, column + 1), log_p.gather(-1, target[:, None])[:, 0])
    return logprobs, empty.index_put((row, column + 1), -(log_p.exp() * log_p).sum(-1))


def _seen(model: nn.Module, token_ids: Tensor, images: Sequence[Images] | None) -> dict[str, Any]:
    seeing = SeeingModel.of(base_of(model)) if images is not None and any(images) else None
    return {} if seeing is None or images is None else seeing.padded(token_ids, images)


def hidden_states(
    model: nn.Module, token_ids: Tensor, attention_mask: Tensor, images: Sequence[Images] | None = None
) -> Tensor:
    """Last hidden states of every token, [B, T, D]. images[i]: those in row i, for a model that sees."""
    base, device = base_of(model), device_of(model)
    body: Any = base.base_model
    output = body(
        input_ids=token_ids.to(device),
        attention_mask=attention_mask.to(device).long(),
        use_cache=False,
        **_seen(model, token_ids, images),
    )
    return output.last_hidden_state

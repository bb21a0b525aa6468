"""The forward pass over padded rows, for every causal language model. Rows are ragged outside this module."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from .unwrap import base_of, device_of
from .vision.inputs import Images, VisionModel


class AgentForward(NamedTuple):
    """logits: [A, V], row by row over the agent's tokens. hidden: [A, D], the last hidden states of the same tokens;
    None unless requested."""

    logits: Tensor
    hidden: Tensor | None


def padded_forward(
    model: nn.Module,
    token_ids: Sequence[np.ndarray],
    agent_mask: Sequence[np.ndarray],
    keep_hidden: bool = False,
    images: Sequence[Images] | None = None,
) -> AgentForward:
    """Compute `forward_agent_tokens` on rows padded on the right. A first token is never an agent token here."""
    base, device = base_of(model), device_of(model)
    ids, attention = _padded(token_ids, device), _padded([np.ones(len(row)) for row in token_ids], device)
    agent = _padded(agent_mask, device).bool()
    agent[:, 0] = False
    predicted = agent[:, 1:]  # [B, T - 1], at the position that predicts
    columns = predicted.any(0).nonzero()[:, 0]
    chosen: dict[str, object] = {}
    narrow = "logits_to_keep" in inspect.signature(base.forward).parameters
    if narrow:
        chosen["logits_to_keep"] = columns
    chosen |= _seen(model, ids, images)
    bodies: list[Any] = []
    with base.base_model.register_forward_hook(lambda body, given, output: bodies.append(output)):
        output = base(input_ids=ids, attention_mask=attention, use_cache=False, **chosen)
    logits = output.logits if narrow else output.logits[:, columns]
    return AgentForward(logits[predicted[:, columns]], bodies[0].last_hidden_state[agent] if keep_hidden else None)


def transforms_before_head(base: Any) -> bool:
    """Return whether a part of the model is between its body and the product with the vocabulary (ModernBERT's)."""
    known = (base.base_model, base.get_output_embeddings())
    return any(next(part.parameters(), None) is not None for part in base.children() if part not in known)


def padded_scores(
    model: nn.Module,
    inner: nn.Module,
    token_ids: Tensor,
    attention_mask: Tensor,
    agent_mask: Tensor,
    images: Sequence[Images],
    temperature: float,
    experts: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Score the agent's tokens with gradient by the model's own logits: log-probs and entropies [B, T], 0 elsewhere.

    model: the one to call, possibly wrapped for several processes. inner: the unwrapped model. All on one device.
    experts: also return the loss that balances the experts of the model.
    """
    predicted = agent_mask[:, 1:].bool()
    columns = predicted.any(0).nonzero()[:, 0]
    output = model(
        input_ids=token_ids,
        attention_mask=attention_mask,
        use_cache=False,
        logits_to_keep=columns,
        **_seen(inner, token_ids, images),
        **({"output_router_logits": True} if experts else {}),
    )
    log_p = torch.log_softmax(output.logits[predicted[:, columns]].float() / temperature, -1)
    target = token_ids[:, 1:][predicted]
    row, column = predicted.nonzero(as_tuple=True)
    empty = log_p.new_zeros(token_ids.shape)
    logprobs = empty.index_put((row, column + 1), log_p.gather(-1, target[:, None])[:, 0])
    entropies = empty.index_put((row, column + 1), -(log_p.exp() * log_p).sum(-1))
    return logprobs, entropies, output.aux_loss if experts else None


def _seen(model: nn.Module, token_ids: Tensor, images: Sequence[Images] | None) -> dict[str, object]:
    vision_model = VisionModel.of(base_of(model)) if images is not None and any(images) else None
    return {} if vision_model is None or images is None else vision_model.padded(token_ids, images)


def hidden_states(
    model: nn.Module, token_ids: Sequence[np.ndarray], images: Sequence[Images] | None = None
) -> list[Tensor]:
    """Return the last hidden states [T_i, D] of every token. images[i]: row i's images, for a vision-language model."""
    device, body = device_of(model), cast(Any, base_of(model).base_model)
    ids = _padded(token_ids, device)
    attention = _padded([np.ones(len(row)) for row in token_ids], device)
    output = body(input_ids=ids, attention_mask=attention, use_cache=False, **_seen(model, ids, images))
    return [row[: len(tokens)] for row, tokens in zip(output.last_hidden_state, token_ids, strict=True)]


def _padded(rows: Sequence[np.ndarray], device: torch.device) -> Tensor:
    """Return rows [T_i] as int64 [B, T], right-padded with 0."""
    parts = [torch.from_numpy(np.ascontiguousarray(row)).long() for row in rows]
    return nn.utils.rnn.pad_sequence(parts, batch_first=True).to(device)

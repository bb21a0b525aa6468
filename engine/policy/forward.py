"""One forward pass over whole trajectories: the logits that predict the agent's tokens, and hidden states if wanted.

On packed rows where the model is prepared for them (`use_packed_forward`), on padded ones otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .merged import merged_weights
from .padded import AgentForward, padded_forward
from .padded import hidden_states as hidden_states
from .prepared import PreparedModel
from .sight.inputs import Images
from .unwrap import base_of
from .unwrap import device_of as device_of
from .unwrap import vocabulary_of as vocabulary_of


def use_packed_forward(model: nn.Module) -> bool:
    """Let `forward_agent_tokens` run this model on packed rows, if it then gives the same log-probs; says whether.

    The candidates of a request share their prompt, and differ in length: packed, no token is computed twice.
    """
    return PreparedModel(model).packed


def forward_agent_tokens(
    model: nn.Module,
    token_ids: Tensor,
    attention_mask: Tensor,
    agent_mask: Tensor,
    *,
    keep_hidden: bool = False,
    images: Sequence[Images] | None = None,
) -> AgentForward:
    """Logits at the position before each agent token.

    token_ids, attention_mask, agent_mask: [B, T], right-padded, no agent token first. Only positions that predict an
    agent token go through the output layer, which for a large vocabulary is most of the cost. images[i]: what a model
    that sees was shown in row i.
    """
    prepared = PreparedModel.of(model)
    agent_mask = agent_mask.bool()
    if prepared is None or not prepared.packed or not bool(agent_mask.any()):
        return padded_forward(model, token_ids, attention_mask, agent_mask, keep_hidden, images)
    lengths = attention_mask.sum(1).tolist()
    rows, masks = token_ids.cpu().numpy(), agent_mask.cpu().numpy()
    packing = prepared.pack(
        [row[:n] for row, n in zip(rows, lengths, strict=True)],
        [mask[:n] for mask, n in zip(masks, lengths, strict=True)],
        images,
        token_ids.shape[1],
    )
    with prepared.forward.attention(), merged_weights(model, gradient=torch.is_grad_enabled()):
        states = prepared.forward.states(packing)
        head = base_of(model).get_output_embeddings()
        logits = head(states.index_select(0, packing.before))  # type: ignore[misc]
    hidden = None
    if keep_hidden:
        hidden = states.new_zeros(*token_ids.shape, states.shape[-1])
        hidden[packing.row, packing.column] = states.index_select(0, packing.itself)
    return AgentForward(logits, hidden)

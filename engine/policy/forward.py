"""Forward passes over whole trajectories: the logits that predict the agent's tokens, and hidden states.

Rows are ragged. A model that `use_packed_forward` prepared runs on packed rows, any other model on padded rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from .merged import merged_weights
from .padded import AgentForward, padded_forward
from .padded import hidden_states as hidden_states
from .prepared import PreparedModel
from .unwrap import base_of
from .unwrap import device_of as device_of
from .unwrap import vocabulary_of as vocabulary_of
from .vision.inputs import Images


def use_packed_forward(model: nn.Module) -> bool:
    """Let `forward_agent_tokens` run this model on packed rows if they give the same log-probs. Return whether they do.

    Candidates of a request share their prompt and differ in length. With packing, no token is computed twice.
    """
    return PreparedModel(model).packed


def forward_agent_tokens(
    model: nn.Module,
    token_ids: Sequence[np.ndarray],
    agent_mask: Sequence[np.ndarray],
    *,
    keep_hidden: bool = False,
    images: Sequence[Images] | None = None,
) -> AgentForward:
    """Return the logits at the position before each agent token.

    token_ids[i]: int [T_i]. agent_mask[i]: bool [T_i], False at the first token. images[i]: the images of row i, for a
    vision-language model. Only positions that predict an agent token go through the output layer, which dominates the
    cost for a large vocabulary.
    """
    prepared = PreparedModel.of(model)
    if prepared is None or not prepared.packed or not any(mask.any() for mask in agent_mask):
        return padded_forward(model, token_ids, agent_mask, keep_hidden, images)
    packing = prepared.pack(token_ids, agent_mask, images)
    with prepared.forward.attention(), merged_weights(model, gradient=torch.is_grad_enabled()):
        states = prepared.forward.states(packing)
        head = base_of(model).get_output_embeddings()
        logits = head(states.index_select(0, packing.before))  # type: ignore[misc]
    return AgentForward(logits, states.index_select(0, packing.itself) if keep_hidden else None)

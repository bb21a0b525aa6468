"""Log-probs and entropies of tokens, and means over turns, from last hidden states."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from .packing import Packing
from .vocabulary_head import TokenLogProbs

DENSE_LOGITS = 1 << 26
"""The most float32 logits (tokens x vocabulary) to compute at once. Larger inputs go through `vocabulary_head`."""


def score_tokens(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    temperature: float,
    entropy_grad: bool = False,
    computed: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Return the log-prob and the entropy at each target token: hidden [M, H], weight [V, H] → [M], [M].

    The entropy carries a gradient only if requested: without an entropy bonus it is only a metric. computed: the format
    of the products. Results are float32.
    """
    if hidden.shape[0] * weight.shape[0] > DENSE_LOGITS or computed != torch.float32:
        return TokenLogProbs.apply(hidden, weight, bias, target, temperature, computed, entropy_grad)  # type: ignore[return-value]
    logits = F.linear(hidden, weight, bias).float()
    if temperature != 1.0:
        logits = logits / temperature
    log_p = torch.log_softmax(logits, -1)
    logprobs = log_p.gather(-1, target[:, None])[:, 0]
    with contextlib.nullcontext() if entropy_grad else torch.no_grad():
        kept = log_p if entropy_grad else log_p.detach()
        entropy = -(kept.exp() * kept).sum(-1)
    return logprobs, entropy


def turn_embeddings(hidden: Tensor, packing: Packing, turn_ids: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Average the last hidden states over each turn's scored tokens: hidden [K, H] → B arrays float32 [S_i, H].

    turn_ids[i]: int [T_i], the turn of each token.
    """
    row, column = packing.row.cpu().numpy(), packing.column.cpu().numpy()
    turns = [ids[column[row == i]] for i, ids in enumerate(turn_ids)]
    means = turn_means(hidden.index_select(0, packing.itself), turns)
    return [part.cpu().numpy() for part in means]


def turn_means(hidden: Tensor, turns: Sequence[np.ndarray], steps: Sequence[int] | None = None) -> list[Tensor]:
    """Average hidden states over turns: [A, H], row by row over the agent's tokens → float32 [S_i, H] of each row.

    turns[i]: the turn of each agent token of row i. steps: S_i of each row; None: its last turn with a token, plus one.
    A turn without tokens gets zeros.
    """
    counts = [int(t.max(initial=-1)) + 1 for t in turns] if steps is None else list(steps)
    starts = np.cumsum([0, *counts[:-1]])
    owner = np.concatenate([start + t.astype(np.int64) for start, t in zip(starts, turns, strict=True)])
    segment = torch.from_numpy(owner).to(hidden.device)
    sums = torch.zeros(sum(counts), hidden.shape[-1], dtype=torch.float32, device=hidden.device)
    sums.index_add_(0, segment, hidden.float())
    means = sums / torch.bincount(segment, minlength=sum(counts)).clamp(min=1)[:, None]
    return list(means.split(counts))

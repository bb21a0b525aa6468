"""Forward passes of the policy that answered over what it sampled: embeddings of requests and of steps, and the logits
that an update is later held to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ....rewards.embedding import pool_step_embeddings
from ...policy.forward import forward_agent_tokens, hidden_states, vocabulary_of
from ...policy.kl import TopKDistribution
from ...policy.token_scores import DENSE_LOGITS
from ...rollouts.padding import pad_rows
from ...rollouts.rollout import Rollout
from ..store.update_task import OriginalLogits

TOGETHER = 256
"""Tokens of one part of a pass that callers may interrupt."""


@dataclass(frozen=True)
class PaddedSamples:
    """Samples as right-padded tensors [B, T]; `turns` is −1 in prompt and padding."""

    token_ids: Tensor
    attention_mask: Tensor
    agent_mask: Tensor
    turns: Tensor
    logprobs: Tensor

    @classmethod
    def of(cls, samples: Sequence[Rollout]) -> PaddedSamples:
        """T is the longest sample's number of tokens."""
        length = max(len(s) for s in samples)
        return cls(
            token_ids=pad_rows([s.token_ids for s in samples], length, 0, torch.long),
            attention_mask=pad_rows([np.ones(len(s), bool) for s in samples], length, 0, torch.bool),
            agent_mask=pad_rows([s.agent_mask for s in samples], length, 0, torch.bool),
            turns=pad_rows([s.turn_ids for s in samples], length, -1, torch.int16),
            logprobs=pad_rows([s.logprobs for s in samples], length, 0.0, torch.float32),
        )


@torch.inference_mode()
def request_embeddings(model: nn.Module, samples: Sequence[Rollout]) -> list[np.ndarray]:
    """Mean last hidden state over what each sample was asked and observed, [D] each."""
    batch = PaddedSamples.of(samples)
    hidden = hidden_states(model, batch.token_ids, batch.attention_mask, [s.images for s in samples])
    seen = (batch.attention_mask & ~batch.agent_mask).to(hidden.device)[..., None]
    means = (hidden * seen).sum(1) / seen.sum(1).clamp(min=1)
    return list(means.float().cpu().numpy())


@torch.inference_mode()
def behaviour_logprobs(model: nn.Module, sample: Rollout, temperature: float) -> np.ndarray:
    """Log-probs float32 [T] of a sample's agent tokens at `temperature`, 0 elsewhere."""
    batch = PaddedSamples.of([sample])
    logits = forward_agent_tokens(model, batch.token_ids, batch.attention_mask, batch.agent_mask).logits.float()
    chosen = batch.token_ids[batch.agent_mask].to(logits.device)[:, None]
    found = np.zeros(len(sample), np.float32)
    found[sample.agent_mask] = (logits / temperature).log_softmax(-1).gather(-1, chosen)[:, 0].cpu().numpy()
    return found


@torch.inference_mode()
def embeddings_and_logits(
    model: nn.Module,
    samples: Sequence[Rollout],
    *,
    embed: bool,
    wanted: Sequence[bool],
    top_k: int | None,
    between: Callable[[], None] | None = None,
) -> tuple[list[Tensor] | None, dict[int, OriginalLogits]]:
    """Step embeddings [S_i, D] of all samples, where `embed`, and the original logits of the `wanted` ones by their
    place in `samples`, from one pass. No pass is made where neither is needed.

    top_k: logits kept of each token; None: all. between: called between two parts of the pass.
    """
    if not embed and not any(wanted):
        return None, {}
    length = max(len(s) for s in samples)
    together = max(1, DENSE_LOGITS // (length * vocabulary_of(model)))
    if between is not None:
        together = min(together, max(1, TOGETHER // length))
    embeddings: list[Tensor] = []
    logits: dict[int, OriginalLogits] = {}
    for start in range(0, len(samples), together):
        if start and between is not None:
            with torch.inference_mode(False):
                between()
        part = samples[start : start + together]
        batch = PaddedSamples.of(part)
        mask = batch.agent_mask & batch.attention_mask
        out = forward_agent_tokens(
            model,
            batch.token_ids,
            batch.attention_mask,
            mask,
            keep_hidden=embed,
            images=[sample.images for sample in part],
        )
        if out.hidden is not None:
            steps = [len(s.trajectory.steps) if s.trajectory is not None else 0 for s in part]
            device = out.hidden.device
            pooled = pool_step_embeddings(out.hidden, batch.turns.to(device), mask.to(device), steps)
            embeddings += [e.cpu() for e in pooled]
        ends = mask.sum(1).cumsum(0).tolist()
        for i in range(len(part)):
            if wanted[start + i]:
                logits[start + i] = OriginalLogits.of(out.logits[ends[i - 1] if i else 0 : ends[i]], top_k)
    return (embeddings if embed else None), logits


def joined(parts: Sequence[OriginalLogits]) -> OriginalLogits:
    """Original logits of several samples, one after another."""
    full = [p.full for p in parts if p.full is not None]
    if full:
        return OriginalLogits(full=torch.cat(full))
    top = [p.top for p in parts if p.top is not None]
    return OriginalLogits(
        top=TopKDistribution(
            torch.cat([t.indices for t in top]), torch.cat([t.logprobs for t in top]), torch.cat([t.tail for t in top])
        )
    )

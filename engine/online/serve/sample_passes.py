"""Forward passes of the answering policy over its samples, and the update task for an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ....configs.sections.online import OnlineConfig
from ....rewards.orchestrator import RewardResult
from ...policy.padded import hidden_states
from ...policy.prepared import forward_agent_tokens
from ...policy.token_scores import DENSE_LOGITS, turn_means
from ...policy.unwrap import vocabulary_of
from ...rollouts.rollout import Rollout
from ..store.images import ImageFolder
from ..store.update_task import Experience, OriginalLogits, UpdateTask
from ..voting import learning_rate
from .answers import Answer

TOGETHER = 256
"""Maximum tokens per part of a pass that callers may interrupt."""


@torch.inference_mode()
def request_embeddings(model: nn.Module, samples: Sequence[Rollout]) -> list[np.ndarray]:
    """Return each sample's mean last hidden state [D] over the tokens that the agent did not write."""
    rows = hidden_states(model, [s.token_ids for s in samples], [s.images for s in samples])
    read = [row[torch.from_numpy(~s.agent_mask).to(row.device)] for row, s in zip(rows, samples, strict=True)]
    return [(row.sum(0) / max(len(row), 1)).float().cpu().numpy() for row in read]


@torch.inference_mode()
def behaviour_logprobs(model: nn.Module, sample: Rollout, temperature: float) -> np.ndarray:
    """Return the log-probs float32 [T] of a sample's agent tokens at `temperature`, 0 elsewhere."""
    images = [sample.images]
    logits = forward_agent_tokens(model, [sample.token_ids], [sample.agent_mask], images=images).logits.float()
    chosen = torch.from_numpy(sample.token_ids[sample.agent_mask]).to(logits.device, torch.long)[:, None]
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
    """Return the step embeddings [S_i, D] of all samples if `embed`, and the original logits of the `wanted` ones.

    The logits are keyed by sample index. One pass computes both, and is skipped if neither is needed. top_k: number of
    logits kept per token; None keeps all. between: called between two parts of the pass.
    """
    if not embed and not any(wanted):
        return None, {}
    length = max(len(s) for s in samples)
    batch = max(1, DENSE_LOGITS // (length * vocabulary_of(model)))
    if between is not None:
        batch = min(batch, max(1, TOGETHER // length))
    embeddings: list[Tensor] = []
    logits: dict[int, OriginalLogits] = {}
    for start in range(0, len(samples), batch):
        if start and between is not None:
            with torch.inference_mode(False):
                between()
        part = samples[start : start + batch]
        masks = [s.agent_mask for s in part]
        out = forward_agent_tokens(
            model, [s.token_ids for s in part], masks, keep_hidden=embed, images=[s.images for s in part]
        )
        if out.hidden is not None:
            steps = [len(s.trajectory.steps) if s.trajectory is not None else 0 for s in part]
            turns = [s.turn_ids[s.agent_mask] for s in part]
            embeddings += [e.cpu() for e in turn_means(out.hidden, turns, steps)]
        by_sample = out.logits.split([int(mask.sum()) for mask in masks])
        for i, rows in enumerate(by_sample, start):
            if wanted[i]:
                logits[i] = OriginalLogits.of(rows, top_k)
    return (embeddings if embed else None), logits


def update_task(
    answer: Answer,
    samples: Sequence[Rollout],
    result: RewardResult,
    logits: Mapping[int, OriginalLogits],
    *,
    config: OnlineConfig,
    engine: str,
    images: ImageFolder | None,
) -> UpdateTask | None:
    """Return the update task for `answer`; None if no candidate has both a label and agent tokens.

    samples: the answer's candidates that have a trajectory. images: the folder for images shown to the policy, if any.
    """
    outcome = answer.label_vote
    candidates = range(1) if config.learn_from == "initial" else range(len(samples))
    rows = [i for i in candidates if outcome.correct[i] is not None and _has_tokens(samples[i])]
    if not rows:
        return None
    chosen = [samples[i] for i in rows]
    rate, kind = learning_rate(outcome, config)
    trajectories = [s.trajectory for s in chosen if s.trajectory is not None]
    steps = max(len(t.steps) for t in trajectories)
    return UpdateTask(
        experience=Experience(
            id=f"{engine}/request-{answer.request.number}".lstrip("/"),
            rows=tuple(s.token_arrays() for s in chosen),
            trajectories=tuple(t.id for t in trajectories),
            answers=tuple(t.answer for t in trajectories),
            pseudo_labels=tuple(outcome.labels[i] for i in rows),
            images=() if images is None else images.save([s.images for s in chosen]),
        ),
        reward_tensor=result.contributions[rows, :steps].float(),
        components=tuple(result.component_names),
        learning_rate=rate,
        learning_rate_kind=kind,
        original_logits=OriginalLogits.joined([logits[i] for i in rows]),
        policy_version=answer.policy_version,
        request=answer.request.number,
        engine=engine,
        facts={"prompt": trajectories[0].prompt_id, "source": answer.request.source},
    )


def _has_tokens(sample: Rollout) -> bool:
    return sample.scorable and bool(sample.agent_mask.any()) and sample.logprobs is not None

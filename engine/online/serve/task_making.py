"""What is learnt from an answer: its candidates, their labels, rewards and original logits as one update task."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from ....configs.sections.online import OnlineConfig
from ....rewards.result import RewardResult
from ...rollouts.rollout import Rollout
from ..store.images import ImageFolder
from ..store.update_task import Experience, OriginalLogits, UpdateTask
from ..voting import learning_rate
from .answers import Answer


def update_task(
    answer: Answer,
    samples: Sequence[Rollout],
    result: RewardResult,
    first: int,
    logits: Mapping[int, OriginalLogits],
    *,
    config: OnlineConfig,
    engine: str,
    images: ImageFolder | None,
) -> UpdateTask | None:
    """The update that `answer` suggests; None when no candidate has a label and tokens of its own.

    samples: the answer's candidates with a trajectory, whose rows in `result` and `logits` begin at `first`.
    images: where the worker finds the pictures that were shown; None where there are none.
    """
    outcome = answer.label_vote
    candidates = range(1) if config.learn_from == "initial" else range(len(samples))
    rows = [i for i in candidates if outcome.correct[i] is not None and _has_tokens(samples[i])]
    if not rows:
        return None
    chosen = [samples[i] for i in rows]
    rate, kind = learning_rate(
        outcome,
        correction=config.lr_correction,
        adaptive_max=config.lr_adaptive_max,
        adaptive_min=config.lr_adaptive_min,
        min_confidence=config.min_confidence,
    )
    trajectories = [s.trajectory for s in chosen if s.trajectory is not None]
    steps = max(len(t.steps) for t in trajectories)
    return UpdateTask(
        experience=Experience(
            id=f"{engine}/request-{answer.request.number}".lstrip("/"),
            rows=tuple(s.token_arrays() for s in chosen),
            trajectories=tuple(t.id for t in trajectories),
            answers=tuple(t.answer for t in trajectories),
            pseudo_labels=tuple(outcome.labels[i] for i in rows),
            confidence=outcome.confidence,
            images=_kept_images(images, chosen),
        ),
        reward_tensor=result.contributions[[first + i for i in rows], :steps].float(),
        components=tuple(result.component_names),
        learning_rate=rate,
        learning_rate_kind="lr_correction" if kind == "lr_correction" else "lr_adaptive",
        original_logits=OriginalLogits.joined([logits[first + i] for i in rows]),
        policy_version=answer.policy_version,
        request=answer.request.number,
        engine=engine,
        created=time.time(),
        facts={"prompt": trajectories[0].prompt_id, "source": answer.request.source},
    )


def _has_tokens(sample: Rollout) -> bool:
    return sample.scorable and bool(sample.agent_mask.any()) and sample.logprobs is not None


def _kept_images(folder: ImageFolder | None, samples: Sequence[Rollout]) -> tuple[tuple[str, ...], ...]:
    """Names of the images that samples were shown, once they are on the disk for the worker."""
    if folder is None or not any(sample.images for sample in samples):
        return ()
    return tuple(folder.save(sample.images) for sample in samples)

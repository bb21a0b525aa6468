"""Advice against each kind of finding, by its detector: one or two sentences, shown and sent with the finding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REMEDIES: Mapping[str, str] = {
    "advantage_share": (
        "Lower the weight of {subject}, or normalise it. Check whether the task's own reward differs within the groups."
    ),
    "reward_without_success": (
        "Read the wrong rollouts with the highest reward (they are the evidence) and lower the weight of {subject}, or "
        "reward only the task."
    ),
    "reward_hack": (
        "Read the quoted answers: let {subject} reward right answers only, or form only if the answer is right."
    ),
    "kl_rise": (
        "Lower the learning rate to that of the model's size (`grpo-tui config show`), raise `training.beta`, or take "
        "`beta_mode: auto`."
    ),
    "no_movement": (
        "Keep the trained weights in float32, raise the learning rate to that of the model's size (`grpo-tui config "
        "show`), and see that something is trainable."
    ),
    "action_collapse": (
        "Raise the sampling temperature or the KL weight, and penalise repeated calls. Check whether the reward pays "
        "for this one action."
    ),
    "entropy_collapse": (
        "Lower the learning rate, raise the KL weight or the upper clip bound (`epsilon_high`), or sample at a higher "
        "temperature."
    ),
    "logprob_mismatch": (
        "Lower `rollouts.max_staleness` or the learning rate. If no rollout is stale, serve the model in the "
        "trainer's precision (`grpo-tui doctor --server URL`)."
    ),
    "sampler_mismatch": (
        "Sample with the trainer's weights and number format (`model.compute`, `model.sampling`). The token view's "
        "overlay `mismatch` shows where they differ. If the policy has hardly moved, raise the learning rate."
    ),
    "length_collapse": (
        "Look whether short answers are rewarded or long ones cut: a length penalty, a token limit, or a loss that is "
        "averaged over sequences."
    ),
    "groups_without_variance": (
        "Take tasks that succeed sometimes, sample more rollouts a group, or fill their places (`replay`, dynamic "
        "sampling)."
    ),
    "not_finite": (
        "Open the rollouts: a reward function divided by zero or met an empty answer. Return a number, or None where "
        "it does not apply. For a metric, lower the learning rate or clip the gradient."
    ),
    "unreadable_calls": (
        "Constrain decoding to the format of calls, show an example in the prompt, or penalise unreadable calls."
    ),
    "errors": "Leave such rollouts out of the loss, or fix the tool: they teach whatever the failure rewarded.",
    "native_calls": (
        "Set `model.tool_calls: json`: the prompt then explains calls as JSON objects, which every model can write."
    ),
    "graded_reward": "Set `environment.success_score` to the score from which an answer counts as right.",
    "kl_limit": "Lower the learning rate, or raise `online.kl.limit` if such a step is wanted.",
    "validation": "Check the labels of the last updates. Raise the confidence that the gate requires.",
    "update_worker": "Read logs/worker.log. `grpo-tui online --resume RUN` continues where it stopped.",
    "serving": "Read logs/engine.log.",
}


def remedy(detector: str, subject: str = "") -> str:
    """Return the advice for a detector; empty if there is none."""
    return REMEDIES.get(detector, "").replace("{subject}", subject or "it")


def remedy_of(data: Mapping[str, Any]) -> str:
    """Return the advice of an event: the one that its writer gave, else that for its detector."""
    said = data.get("remedy")
    return said if isinstance(said, str) else remedy(str(data.get("detector") or ""), str(data.get("subject") or ""))

"""What helps against a finding, by the detector that made it: one sentence or two, beside the finding wherever it is
shown, printed or sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REMEDIES: Mapping[str, str] = {
    "advantage_share": (
        "Lower the weight of {subject}, or normalise it; look whether the task's own reward differs within the groups."
    ),
    "reward_without_success": (
        "Read the wrong rollouts with the highest reward (they are the evidence) and lower the weight of {subject}, or "
        "reward only what the task asks for."
    ),
    "reward_hack": (
        "Read the quoted answers: make {subject} pay for right answers alone, or for form where the answer is right."
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
        "Raise the sampling temperature or the KL weight, and penalise repeated calls; look whether the reward pays "
        "for this one action."
    ),
    "entropy_collapse": (
        "Lower the learning rate, raise the KL weight or the upper clip bound (`epsilon_high`), or sample at a higher "
        "temperature."
    ),
    "logprob_mismatch": (
        "Lower `rollouts.max_staleness` or the learning rate; where nothing is behind, serve the model in the "
        "trainer's precision (`grpo-tui doctor --server URL`)."
    ),
    "sampler_mismatch": (
        "Sample with the trainer's weights and number format (`model.compute`, `model.sampling`); the token view's "
        "overlay `mismatch` shows where they differ. Where the policy has hardly moved, raise the learning rate."
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
        "it does not apply; of a metric, lower the learning rate or clip the gradient."
    ),
    "unreadable_calls": (
        "Constrain decoding to the format of calls, show an example in the prompt, or penalise what cannot be read."
    ),
    "errors": "Leave such rollouts out of the loss, or mend the tool: they teach what the failure happened to reward.",
    "native_calls": (
        "Set `model.tool_calls: json`: the prompt then explains calls as JSON objects, which every model can write."
    ),
    "graded_reward": "Set `environment.success_score` to the score from which an answer counts as right.",
    "kl_limit": "Lower the learning rate, or raise `online.kl.limit` if such a step is wanted.",
    "validation": "Look at the labels of the last updates; raise the confidence that the gate asks for.",
    "update_worker": "Read logs/worker.log; `grpo-tui online --resume RUN` starts it again where it was.",
    "serving": "Read logs/engine.log.",
}


def remedy(detector: str, subject: str = "") -> str:
    """What helps against what a detector found; empty where nothing general is known."""
    return REMEDIES.get(detector, "").replace("{subject}", subject or "it")


def remedy_of(data: Mapping[str, Any]) -> str:
    """The same of an event's data: what its writer said helps (`remedy`), else by its detector."""
    said = data.get("remedy")
    return said if isinstance(said, str) else remedy(str(data.get("detector") or ""), str(data.get("subject") or ""))

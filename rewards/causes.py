"""Rank causes before symptoms, by a table of which fault explains which.

A fault explains another if the table has the pair and it began no later. If both began together, the one listed first
in the table is the cause, because it is more specific. No torch, no numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from .detectors import SEVERITIES, SMALL_GROUPS, Finding

GRAVE = ("warning", "failure")

LEARNT = (
    "entropy_rise", "paid_certainty", "reward_hack", "length_reward", "repetition", "copied_prompt", "one_answer",
    "no_diversity", "constant_reward", "truncation", "unanswered", "errors", "kl_rise", "clipped", "unreadable_calls",
    "entropy_collapse", "length_collapse", "action_collapse", "reward_without_success", "groups_without_variance",
    "held_out_gap", "sampler_mismatch",
)  # fmt: skip
"""Behaviour of a policy that learned something wrong."""
SYMPTOMS = frozenset(LEARNT[LEARNT.index("entropy_collapse") : -1])
"""Behaviour that is rarely its own cause. It ranks after every other warning, whatever the steps, because detectors
notice a drift long after it began."""
FROM_THE_START = ("rejected_answers", "accepted_without_answer", "paid_certainty", "reward_hack", "silence_paid")
"""Faults of the grader. They exist from the first step, even if the policy runs into them later."""
STILL = ("no_movement", "groups_without_variance", "sampler_mismatch")
"""Signs of a policy that learns nothing."""
EXPLAINS: Mapping[str, tuple[str, ...]] = {
    "mixed_groups": (*LEARNT, *STILL, "advantage_order", "noisy_reward", "noisy_labels"),
    "not_finite": (*LEARNT, *STILL, "advantage_order", "advantage_scale"),
    "other_template": (*LEARNT, *STILL),
    "random_policy": (*LEARNT, *STILL),
    "text_mismatch": (*LEARNT, *STILL, "noisy_reward", "rejected_answers", "accepted_wrong_answers", "one_answer"),
    "prompt_cut": (*LEARNT, *STILL, "noisy_labels", "prompt_gap", "surprising_tokens", "rejected_answers"),
    "repeated_rollouts": (*LEARNT, "few_tasks", "no_movement", "surprising_tokens"),
    "untrained_tokens": (*LEARNT, *STILL, "surprising_tokens"),  # the tokens left in the loss belong to harder tasks
    "surprising_tokens": (*LEARNT, "trained_tokens", "logprob_mismatch"),
    "trained_tokens": (*LEARNT, "surprising_tokens", "logprob_mismatch"),
    "reference_mismatch": (*LEARNT, *STILL, "kl_weight"),
    "reward_order": (*LEARNT, "noisy_reward", "advantage_order"),
    "leaked_answer": (*LEARNT, "no_movement"),
    "noisy_labels": (*LEARNT, "prompt_gap", "noisy_reward", "rejected_answers"),
    "prompt_gap": (*LEARNT, *STILL),
    "advantage_scale": (*STILL, "advantage_order"),
    "advantage_order": LEARNT,
    "noisy_reward": (*LEARNT, "accepted_without_answer", "rejected_answers", "accepted_wrong_answers"),
    "no_diversity": (*STILL, "entropy_collapse", "one_answer", "held_out_gap"),
    "errors": (*LEARNT, *STILL),
    "one_answer": (*LEARNT, "rejected_answers", "accepted_without_answer", "accepted_wrong_answers"),
    "rejected_answers": (*LEARNT, *STILL, "accepted_wrong_answers", "accepted_without_answer"),
    "unanswered": (*LEARNT, *STILL),
    "constant_reward": (*LEARNT, *STILL, "accepted_without_answer", "noisy_reward", "accepted_wrong_answers"),
    "accepted_wrong_answers": (*LEARNT, "accepted_without_answer", "rejected_answers"),
    "few_tasks": LEARNT,
    "single_prompt": LEARNT,
    "repetition": LEARNT,
    "copied_prompt": (*LEARNT, "advantage_share"),
    "length_reward": (*LEARNT, "advantage_share"),
    "accepted_without_answer": LEARNT,
    "silence_paid": (*LEARNT, "advantage_share"),
    "paid_certainty": (*LEARNT, "advantage_share"),
    "reward_hack": (*LEARNT, "advantage_share"),
    "advantage_share": LEARNT,
    "logprob_mismatch": LEARNT,
    "sampler_mismatch": (*LEARNT, "no_movement", "surprising_tokens"),
    "kl_weight": STILL,
    "no_movement": STILL,
    "kl_rise": LEARNT,
    "entropy_rise": LEARNT,
    "truncation": LEARNT,
    "clipped": STILL,
    "entropy_collapse": ("no_diversity", "one_answer", "action_collapse", "repetition", "groups_without_variance"),
}


@dataclass(frozen=True)
class Found:
    """A fault over a whole run. `finding` is its strongest form, found at step `strongest`. `step` is the step that
    first reported it, `began` the first step that shows it, and `count` the number of steps that found it. Steps are
    None in a record without steps. `cause` is the detector of the fault that explains it, or empty."""

    finding: Finding
    step: int | None
    strongest: int | None
    count: int
    began: int | None = None
    cause: str = ""

    @property
    def grave(self) -> bool:
        """Whether the fault is a warning or a failure."""
        return self.finding.severity in GRAVE


def ranked(found: Iterable[Found]) -> list[Found]:
    """Sort faults, likeliest cause first, and set the `cause` of each. Hints come after warnings."""
    ordered = sorted(found, key=_order)
    serious = [f for f in ordered if f.grave]
    explained = [replace(f, cause=_cause(f, serious[:i])) for i, f in enumerate(serious)]
    return sorted(explained, key=lambda f: bool(f.cause)) + ordered[len(serious) :]


def _cause(found: Found, before: Iterable[Found]) -> str:
    name = found.finding.detector
    if (
        found.began is None and name in LEARNT and name not in STILL
    ):  # without steps, nothing shows that the policy learned it
        return ""
    return next((f.finding.detector for f in before if name in EXPLAINS.get(f.finding.detector, ())), "")


def _order(found: Found) -> tuple[int, bool, int, int]:
    name, severity = found.finding.detector, found.finding.severity
    index = list(EXPLAINS).index(name) if name in EXPLAINS else len(EXPLAINS)
    began = found.began or 0
    return (
        0 if found.grave else SEVERITIES.index(severity),
        name in SYMPTOMS and found.finding.subject != SMALL_GROUPS,
        min(began, 1) if name in FROM_THE_START else began,
        index,
    )

"""Check the evidence for a finding by arithmetic over the tools' rollouts and metrics, without the product's code.

Each function in `SUPPORT` returns a sentence with numbers, or an empty text if the evidence does not show the fault.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import correlation, fmean, stdev
from typing import Any

CURVES = ("kl/mean", "kl/beta", "sampler/kl", "train/clip_fraction", "train/entropy", "train/learning_rate")
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Evidence:
    """The tools' answers about one finding. rows: rollouts of the step that shows it best. rollouts, explained, tokens:
    of the rollouts that it names. curves: (step, value) by metric."""

    step: int
    rows: Sequence[Json]
    rollouts: Sequence[Json]
    explained: Sequence[Json]
    tokens: Sequence[Sequence[Json]]
    curves: Mapping[str, Sequence[tuple[int, float]]]

    def values(self, name: str) -> list[float]:
        """Return the values of a metric over all steps."""
        return [float(value) for _, value in self.curves.get(name, ())]


def _text(rollout: Json) -> str:
    return " ".join(step["text"] for step in rollout["steps"]).strip()


def _accepted(e: Evidence) -> str:
    paid = [r for r in e.rollouts if r["correct"] and r["answer"] != r["expected"]]
    return f"{paid[0]['answer']!r} counts as right, {paid[0]['expected']!r} is expected" if paid else ""


def _rejected(e: Evidence) -> str:
    lost = [r for r in e.rollouts if r["correct"] is False and r["answer"] == r["expected"]]
    return f"{lost[0]['answer']!r} is expected, and counts as wrong" if lost else ""


def _noisy(e: Evidence) -> str:
    rewards: dict[tuple[str, str], set[float]] = defaultdict(set)
    for rollout, explained in zip(e.rollouts, e.explained, strict=True):
        rewards[rollout["prompt"], _text(rollout)].add(explained["reward"])
    found = next((values for values in rewards.values() if len(values) > 1), None)
    return f"the same text earns {sorted(found)}" if found else ""


def _constant(e: Evidence) -> str:
    rewards = {round(row["reward"], 6) for row in e.rows}
    right = {row["correct"] for row in e.rows}
    return f"{len(e.rows)} rollouts earn {sorted(rewards)}" if len(rewards) == 1 or right == {True} else ""


def _one_answer(e: Evidence) -> str:
    right = [row["answer"] for row in e.rows if row["correct"]]
    answer, count = Counter(right or [row["answer"] for row in e.rows]).most_common(1)[0]
    share = count / len(right or e.rows)
    return f"{answer!r} is {share:.0%} of the {'right ' if right else ''}answers" if share > 0.8 else ""


def _repeats(e: Evidence) -> str:
    words = [_text(r).split() for r in e.rollouts]
    found = [w for w in words if len(w) > 3 and len(set(w)) <= len(w) / 2]
    return f"{len(found[0])} words, {len(set(found[0]))} different" if found else ""


def _copies(e: Evidence) -> str:
    groups: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for row in e.rows:
        groups[row["group"]].add((row["answer"], row["tokens"]))
    same = sum(len(answers) == 1 for answers in groups.values())
    return f"{same} of {len(groups)} groups have one answer of one length" if same > 0.8 * len(groups) else ""


def _length(e: Evidence) -> str:
    tokens, rewards = [[float(row[name]) for row in e.rows] for name in ("tokens", "reward")]
    if len(set(tokens)) < 2 or len(set(rewards)) < 2:
        return ""
    r = correlation(tokens, rewards)
    return f"the correlation of tokens and reward is {r:.2f}" if abs(r) > 0.7 else ""


def _order(e: Evidence) -> str:
    for group in _groups(e):
        rewards, advantages = [[p[name] for p in group] for name in ("reward", "advantage")]
        if len(set(rewards)) > 1 and len(set(advantages)) > 1 and (r := correlation(rewards, advantages)) < 0.7:
            return f"within a group the correlation of reward and advantage is {r:.2f}"
    return ""


def _scale(e: Evidence) -> str:
    for group in _groups(e):
        rewards, largest = [p["reward"] for p in group], max(abs(p["advantage"]) for p in group)
        if len(group) == 1:
            return "a group of one"
        if (spread := stdev(rewards)) > 0.1:
            expected = max(abs(r - fmean(rewards)) for r in rewards) / spread
            if not expected / 3 < largest < expected * 3:
                return f"an advantage of {largest:.3g}, where the rewards give {expected:.3g}"
    return ""


def _groups(e: Evidence) -> Iterator[list[Json]]:
    """Yield the groups of the step, with rewards and advantages."""
    groups: dict[str, list[Json]] = defaultdict(list)
    for row in e.rows:
        if row["reward"] is not None and row["advantage"] is not None:
            groups[row["group"]].append(row)
    yield from groups.values()


def _written(e: Evidence) -> Iterator[tuple[bool, Json]]:
    """Yield (whether the agent wrote it, token) for the rollouts that were read."""
    for rollout, tokens in zip(e.rollouts, e.tokens, strict=True):
        spans = [range(*step["token_span"]) for step in rollout["steps"]]
        yield from ((any(t["at"] in span for span in spans), t) for t in tokens)


def _trained(e: Evidence) -> str:
    others = [t["text"] for written, t in _written(e) if t["agent"] and not written]
    return f"the loss sees {others[0]!r}, which is not of the agent" if others else ""


def _untrained(e: Evidence) -> str:
    left = [t["text"] for written, t in _written(e) if written and not t["agent"]]
    return f"the loss does not see {left[0]!r} of the agent" if left else ""


def _surprise(e: Evidence) -> str:
    nats = -fmean([t["logprob"] for written, t in _written(e) if written] or [0])
    entropy = fmean(e.values("train/entropy") or [0])
    return f"{nats:.2f} nats a token at an entropy of {entropy:.2f}" if abs(nats - entropy) > 0.5 * entropy else ""


def _sampler(e: Evidence) -> str:
    kl = max(e.values("sampler/kl"), default=0)
    return f"the KL of sampler and trainer reaches {kl:.3g} nats a token" if kl > 1e-3 else ""


def _rise(e: Evidence) -> str:
    kl = max(e.values("kl/mean"), default=0)
    return f"the KL to the reference reaches {kl:.3g} nats a token" if kl > 0.2 else ""


def _still(e: Evidence) -> str:
    if (e.values("train/learning_rate") or [1.0])[-1] == 0:
        return "the learning rate is 0 at the end"
    kl = e.values("kl/mean")
    moved = max(kl, default=0) - min(kl, default=0)
    return f"the KL to the reference stays within {moved:.1g} nats a token" if kl and moved < 5e-3 else ""


def _clipped(e: Evidence) -> str:
    share = max(e.values("train/clip_fraction"), default=0)
    return f"{share:.0%} of the tokens are clipped" if share > 0.3 else ""


def _held(e: Evidence) -> str:
    beta = max(e.values("kl/beta"), default=0)
    return f"a KL weight of {beta:.3g}, and {_still(e)}" if beta > 1 and _still(e) else ""


def _reference(e: Evidence) -> str:
    kl = (e.values("kl/mean") or [0.0])[0]
    return f"the KL to the reference is {kl:.3g} nats a token at the first step" if abs(kl) > 0.05 else ""


def _cut(e: Evidence) -> str:
    cut = [row["stop_reason"] for row in e.rows if str(row["stop_reason"]).endswith("limit")]
    return f"{len(cut)} of {len(e.rows)} rollouts stop at a limit" if len(cut) > len(e.rows) / 2 else ""


def _failed(e: Evidence) -> str:
    errors = [x for r in e.rollouts for x in (r["error"], *(s["error"] for s in r["steps"])) if x]
    return f"an error: {errors[0][:80]}" if errors else ""


def _few(e: Evidence) -> str:
    tasks = {row["prompt_id"] for row in e.rows}
    groups = {row["group"] for row in e.rows}
    return f"{len(tasks)} tasks in {len(groups)} groups" if len(tasks) <= len(groups) / 2 else ""


def _unanswered(e: Evidence) -> str:
    silent = sum(not row["answer"] for row in e.rows)
    return f"{silent} of {len(e.rows)} rollouts have no answer" if silent > len(e.rows) / 2 else ""


def _labels(e: Evidence) -> str:
    expected: dict[str, set[str]] = defaultdict(set)
    for r in e.rollouts:
        expected[r["prompt"]].add(r["expected"])
    found = next((keys for keys in expected.values() if len(keys) > 1), None)
    return f"one prompt expects {sorted(found)}" if found else ""


def _rewards_moved(e: Evidence) -> str:
    moved = sum(bool(row["correct"]) != (row["reward"] > 0.5) for row in e.rows)
    return f"{moved} of {len(e.rows)} rollouts earn the reverse of their verdict" if moved > 0.1 * len(e.rows) else ""


def _uncertain(e: Evidence) -> str:
    first, *_, last = e.values("train/entropy") or [0.0, 0.0]
    return f"the entropy falls from {first:.2f} to {last:.2f}" if 0 <= last < first / 4 else ""


SUPPORT: Mapping[str, Callable[[Evidence], str]] = {
    "accepted_without_answer": _accepted,
    "paid_certainty": _accepted,
    "reward_hack": _accepted,
    "rejected_answers": _rejected,
    "noisy_reward": _noisy,
    "constant_reward": _constant,
    "one_answer": _one_answer,
    "repetition": _repeats,
    "no_diversity": _copies,
    "length_reward": _length,
    "advantage_order": _order,
    "advantage_scale": _scale,
    "trained_tokens": _trained,
    "untrained_tokens": _untrained,
    "surprising_tokens": _surprise,
    "sampler_mismatch": _sampler,
    "kl_rise": _rise,
    "no_movement": _still,
    "clipped": _clipped,
    "kl_weight": _held,
    "reference_mismatch": _reference,
    "truncation": _cut,
    "errors": _failed,
    "few_tasks": _few,
    "unanswered": _unanswered,
    "noisy_labels": _labels,
    "reward_order": _rewards_moved,
    "entropy_collapse": _uncertain,
}
"""By detector. Findings without a function here are accepted unchecked."""

"""The input of the detectors: training steps as plain data. No torch, no numpy.

A running training and `grpo-tui check` build the same `Batch` of the same step. A detector names its `needs`. It sees
only rollouts that have them, and a record that never has them is reported as not checked.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ..configs import metric_names as metric
from ..envs.trajectory import Trajectory
from .breakdown import RewardBreakdown

T = TypeVar("T")
GOALS = frozenset({"task", "environment"})
_WORD = re.compile(r"\w+")
_ROLE = re.compile(r"^\[\w+\] ", re.MULTILINE)
"""The role of a message, which a prompt of several messages names."""
TEXT_KEPT = 2000
"""Characters of a rollout's text that detectors get."""


@dataclass(frozen=True)
class RolloutSummary:
    """One rollout: its reward by component (sums over its steps) and its behaviour."""

    id: str
    group: str
    total: float | None
    """The reward; NaN where it is not finite, None where it was not recorded."""
    contributions: Mapping[str, float]
    correct: bool | None = None
    actions: tuple[str, ...] = ()
    """Called tools in order. Turns without a readable call are not in it."""
    tokens: int = 0
    """Tokens of the agent; 0: not known."""
    turns: int | None = None
    """Turns of the agent; None: not known."""
    tools: frozenset[str] | None = None
    """Tools that the environment offers, without those that end the task; None: not known."""
    goals: frozenset[str] = frozenset()
    """Components that are the task itself: the environment's reward, and the user's reward functions."""
    apart: frozenset[str] = frozenset()
    """Components that only decide between peers, and are no part of the compared return."""
    unreadable: bool = False
    """A turn holds a call that cannot be parsed."""
    failed: bool = False
    """The rollout ended in an error."""
    call_failed: bool = False
    """A call of a tool failed, or the record does not tell which part of the rollout did."""
    text: str = ""
    """The beginning of the agent's text; empty: not known."""
    task: str = ""
    """The id of the task; empty: not known."""
    expected: str | None = None
    answer: str | None = None
    cut: bool = False
    """A limit ended the last turn."""
    prompt: str = ""
    """The end of the prompt; empty: not known, or with images."""
    written: int = 0
    """Tokens between the start and the end of the agent's turns; 0: not known. `tokens` are those in the loss."""
    advantage: float | None = None
    """The mean over the agent's tokens; 0 in a group that was filtered out; None: not known, or not from a comparison
    of rewards."""
    surprise: float | None = None
    """Minus the mean log-prob of the tokens in the agent's turns, in nats, by the policy that sampled them."""
    entropy: float | None = None
    """The mean entropy of the trained policy at the same tokens, in nats; None: not in the loss, or not recorded."""
    masked: bool = False
    """It was in the batch, and the loss left out all its tokens."""
    used: float | None = None
    """The mean advantage of its tokens in the loss, from the loss itself; None: not known."""
    unread: float | None = None
    """Share of the words of the prompt that the tokens before the first turn do not hold; None: not known."""
    unwritten: float | None = None
    """Share of the words of the turns that the tokens from the first turn on do not hold; None: not known."""

    @property
    def weighted(self) -> bool:
        """Whether the reward is the sum of its components, and the task is one of them."""
        return (
            self.total is not None
            and not GOALS.union(self.goals).isdisjoint(self.contributions)
            and math.isclose(self.total, math.fsum(self.contributions.values()), rel_tol=1e-4, abs_tol=1e-4)
        )


@dataclass(frozen=True)
class HeldOut:
    """An evaluation on held-out tasks after a step: its greedy rollouts, and success at temperature 1 if known."""

    step: int
    rollouts: Sequence[RolloutSummary]
    success: float | None


@dataclass(frozen=True)
class Batch:
    """One training step: its training rollouts, its metrics by flat name, and the latest evaluation before it. `step`
    is None where none is recorded."""

    step: int | None
    rollouts: Sequence[RolloutSummary]
    metrics: Mapping[str, float] = field(default_factory=dict)
    held_out: HeldOut | None = None
    _facts: dict[str, Any] = field(init=False, default_factory=dict, compare=False, repr=False)

    def fact(self, name: str, compute: Callable[[Batch], T]) -> T:
        """Return a number of this step that detectors need in each later step; computed once."""
        if name not in self._facts:
            self._facts[name] = compute(self)
        return self._facts[name]


@dataclass(frozen=True)
class Need:
    """Data that a detector requires: of each rollout (`has`), a finite metric of the step (`metric`), or an evaluation
    on held-out tasks (`held_out`)."""

    name: str
    has: Callable[[RolloutSummary], bool] | None = None
    metric: str = ""
    held_out: bool = False


REWARDS = Need("rewards", lambda r: r.total is not None and math.isfinite(r.total))
COMPONENTS = Need("weighted reward components that add up to the reward", lambda r: r.weighted)
SUCCESS = Need("which rollouts are correct", lambda r: r.correct is not None)
CALLS = Need("calls of tools", lambda r: bool(r.actions))
LENGTHS = Need("tokens or turns of the agent", lambda r: bool(r.tokens) or r.turns is not None)
TASKS = Need("ids of tasks", lambda r: bool(r.task))
PROMPTS = Need("prompts without images", lambda r: bool(r.prompt))
ANSWERS = Need("right answers", lambda r: r.expected is not None)
WRITTEN = Need("numbers of tokens in the loss and in the turns", lambda r: r.written > 0 and r.tokens > 0)
ADVANTAGES = Need("advantages", lambda r: r.advantage is not None)
SURPRISE = Need("log-probs of tokens", lambda r: r.surprise is not None)
USED = Need("advantages in the loss", lambda r: r.used is not None)
READ = Need("tokens of prompts", lambda r: r.unread is not None or r.unwritten is not None)
TEXTS = Need("texts of the agent", lambda r: bool(r.text))
GRADIENT = Need(f"the metric {metric.GRAD_NORM}", metric=metric.GRAD_NORM)
ENTROPY = Need(f"the metric {metric.ENTROPY}", metric=metric.ENTROPY)
CLIPPED = Need(f"the metric {metric.CLIP_FRACTION}", metric=metric.CLIP_FRACTION)
BETA = Need(f"the metric {metric.BETA}", metric=metric.BETA)
MISMATCH = Need(f"the metric {metric.LOGPROB_MISMATCH}", metric=metric.LOGPROB_MISMATCH)
SAMPLER = Need(f"the metric {metric.SAMPLER_KL}", metric=metric.SAMPLER_KL)
KL = Need(f"the metric {metric.KL_MEAN}", metric=metric.KL_MEAN)
HELD_OUT = Need("evaluations on held-out tasks", held_out=True)


def having(batch: Batch, needs: Sequence[Need]) -> Batch | None:
    """Return the part of a batch that has all `needs`; None if no rollout has."""
    if any(n.metric and not math.isfinite(batch.metrics.get(n.metric, math.nan)) for n in needs):
        return None
    if batch.held_out is None and any(n.held_out for n in needs):
        return None
    tests = [n.has for n in needs if n.has is not None]
    if not tests:
        return batch
    rollouts = [r for r in batch.rollouts if all(test(r) for test in tests)]
    return replace(batch, rollouts=rollouts) if rollouts else None


def surprise_of(trajectory: Trajectory, logprobs: Sequence[float], agent_mask: Sequence[bool]) -> float | None:
    """Return minus the mean log-prob, in nats, of the tokens in the agent's turns; None if they were not recorded."""
    own = [
        float(p)
        for start, end in (s.token_span for s in trajectory.steps)
        for p, mine in zip(logprobs[start:end], agent_mask[start:end], strict=True)
        if mine
    ]
    return -math.fsum(own) / len(own) if any(own) else None


def rollout_of(
    trajectory: Trajectory,
    breakdown: RewardBreakdown | None,
    tokens: int = 0,
    apart: Collection[str] = (),
    *,
    advantage: float | None = None,
    surprise: float | None = None,
    entropy: float | None = None,
    masked: bool = False,
    used: float | None = None,
    read: tuple[str, str] | None = None,
) -> RolloutSummary:
    """Return a trajectory and its reward as detectors see them. tokens: of the agent, as the loss counts them. entropy:
    the sum over these tokens. read: the text of the tokens before the first turn, and of those after them.

    A component without a known weight counts as its raw value. The components then do not add up to the reward.
    """
    sums: dict[str, float] = defaultdict(float)
    for step in breakdown.steps if breakdown is not None else ():
        for name, value in step.components.items():
            known = value.raw if value.contribution is None else value.contribution
            if known is not None:
                sums[name] += known
    written = sum(end - start for start, end in (s.token_span for s in trajectory.steps))
    return RolloutSummary(
        trajectory.id,
        trajectory.group,
        trajectory.env_reward if breakdown is None else breakdown.total,
        sums,
        trajectory.correct,
        tuple(s.action for s in trajectory.steps if s.action is not None),
        tokens,
        len(trajectory.steps),
        frozenset(t.name for t in trajectory.tools if not t.final) if trajectory.tools else None,
        GOALS | {score.name for step in trajectory.steps for score in step.scores},
        frozenset(apart),
        any(s.unreadable for s in trajectory.steps),
        bool(trajectory.error),
        any(s.error for s in trajectory.steps),
        "\n".join(s.text for s in trajectory.steps)[:TEXT_KEPT],
        trajectory.prompt_id,
        trajectory.expected,
        trajectory.answer,
        trajectory.cut,
        "" if trajectory.images or trajectory.seen else trajectory.prompt[-TEXT_KEPT:],
        written,
        advantage,
        surprise,
        entropy / tokens if entropy is not None and 0 < tokens <= written and not masked else None,
        masked,
        used,
        None if read is None else _unread(trajectory.prompt, read[0]),
        None if read is None else _unread("\n".join(s.text for s in trajectory.steps), read[1]),
    )


def _unread(text: str, read: str) -> float | None:
    """Return the share of the words of a text that its tokens lack. Tokenizers may change case and form."""
    texts = _ROLE.sub("", text), read
    words, held = (set(_WORD.findall(unicodedata.normalize("NFKC", t).casefold())) for t in texts)
    return len(words - held) / len(words) if words else None

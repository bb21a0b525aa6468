"""The input of the detectors: training steps as plain data. No torch, no numpy.

Training and `grpo-tui check` build the same `Batch` for a step. A detector declares its `needs` and sees only rollouts
that have them. If a record never has them, the detector is reported as not checked.
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
"""The role labels in a prompt of several messages."""
TEXT_KEPT = 2000
"""Maximum characters of a rollout's text for detectors."""


@dataclass(frozen=True)
class RolloutSummary:
    """One rollout: its reward by component (summed over its steps) and its behaviour."""

    id: str
    group: str
    total: float | None
    """The reward; NaN where it is not finite, None where it was not recorded."""
    contributions: Mapping[str, float]
    correct: bool | None = None
    actions: tuple[str, ...] = ()
    """Called tools in order, without turns that have no readable call."""
    tokens: int = 0
    """Agent tokens in the loss; 0: unknown."""
    turns: int | None = None
    """Turns of the agent; None: unknown."""
    tools: frozenset[str] | None = None
    """Tools that the environment offers, without those that end the task; None: unknown."""
    goals: frozenset[str] = frozenset()
    """Components that define the task: the environment's reward and the user's reward functions."""
    apart: frozenset[str] = frozenset()
    """Components that only decide between peers and are not part of the compared return."""
    unreadable: bool = False
    """A turn contains a call that cannot be parsed."""
    failed: bool = False
    """The rollout ended in an error."""
    call_failed: bool = False
    """A tool call failed, or the record does not show which part of the rollout failed."""
    text: str = ""
    """The beginning of the agent's text; empty: unknown."""
    characters: int = 0
    """The length of the agent's text; 0: unknown."""
    task: str = ""
    """The id of the task; empty: unknown."""
    expected: str | None = None
    answer: str | None = None
    """Empty: none could be read; None: unknown, as in records of other trainers."""
    cut: bool = False
    """A limit ended the last turn."""
    prompt: str = ""
    """The end of the prompt; empty: unknown, or with images."""
    written: int = 0
    """Tokens between the start and the end of the agent's turns; 0: unknown."""
    advantage: float | None = None
    """The mean over the agent's tokens; 0 in a group that was filtered out; None: unknown, or not from a comparison of
    rewards."""
    surprise: float | None = None
    """Minus the mean log-prob of the tokens in the agent's turns, in nats, under the policy that sampled them."""
    entropy: float | None = None
    """The mean entropy of the trained policy at the same tokens, in nats; None: not in the loss, or not recorded."""
    masked: bool = False
    """The rollout was in the batch, but the loss masked all its tokens."""
    in_loss: bool | None = None
    """Whether the loss has terms of the rollout; False: training selected it, but the loss has none; None: unknown."""
    used: float | None = None
    """The mean advantage of its tokens as used in the loss; None: unknown."""
    unread: float | None = None
    """Share of the prompt's words that are missing from the tokens before the first turn; None: unknown."""
    unwritten: float | None = None
    """Share of the turns' words that are missing from the tokens from the first turn on; None: unknown."""
    observed: int | None = None
    """A hash of the observations, which differs between processes; None: unknown, or with images."""

    @property
    def weighted(self) -> bool:
        """Whether the reward is the sum of its components and the task is one of them."""
        return (
            self.total is not None
            and not GOALS.union(self.goals).isdisjoint(self.contributions)
            and math.isclose(self.total, math.fsum(self.contributions.values()), rel_tol=1e-4, abs_tol=1e-4)
        )


@dataclass(frozen=True)
class HeldOut:
    """An evaluation on held-out tasks after a step: its greedy rollouts, and the success at temperature 1 if known."""

    step: int
    rollouts: Sequence[RolloutSummary]
    success: float | None


@dataclass(frozen=True)
class Batch:
    """One training step: its training rollouts, its metrics by flat name, and the latest evaluation before it. `step`
    is None if the record has none."""

    step: int | None
    rollouts: Sequence[RolloutSummary]
    metrics: Mapping[str, float] = field(default_factory=dict)
    held_out: HeldOut | None = None
    _facts: dict[str, Any] = field(init=False, default_factory=dict, compare=False, repr=False)

    def fact(self, name: str, compute: Callable[[Batch], T]) -> T:
        """Compute and cache a value of this step that detectors need again at later steps."""
        if name not in self._facts:
            self._facts[name] = compute(self)
        return self._facts[name]


@dataclass(frozen=True)
class Need:
    """Data that a detector requires: from each rollout (`has`), a finite metric of the step (`metric`), or a held-out
    evaluation (`held_out`)."""

    name: str
    has: Callable[[RolloutSummary], bool] | None = None
    metric: str = ""
    held_out: bool = False


REWARDS = Need("rewards", lambda r: r.total is not None and math.isfinite(r.total))
COMPONENTS = Need("weighted reward components that add up to the reward", lambda r: r.weighted)
SUCCESS = Need("which rollouts are correct", lambda r: r.correct is not None)
CALLS = Need("tool calls", lambda r: bool(r.actions))
LENGTHS = Need("agent tokens or turns", lambda r: bool(r.tokens) or r.turns is not None)
TASKS = Need("task ids", lambda r: bool(r.task))
PROMPTS = Need("prompts without images", lambda r: bool(r.prompt))
ANSWERS = Need("right answers", lambda r: r.expected is not None)
WRITTEN = Need("token counts in the loss and in the turns", lambda r: r.written > 0 and r.tokens > 0)
ADVANTAGES = Need("advantages", lambda r: r.advantage is not None and math.isfinite(r.advantage))
SURPRISE = Need("token log-probs", lambda r: r.surprise is not None)
USED = Need("advantages in the loss", lambda r: r.used is not None)
READ = Need("prompt tokens", lambda r: r.unread is not None or r.unwritten is not None)
TEXTS = Need("agent texts", lambda r: bool(r.text))
GRADIENT = Need(f"the metric {metric.GRAD_NORM}", metric=metric.GRAD_NORM)
ENTROPY = Need(f"the metric {metric.ENTROPY}", metric=metric.ENTROPY)
CLIPPED = Need(f"the metric {metric.CLIP_FRACTION}", metric=metric.CLIP_FRACTION)
BETA = Need(f"the metric {metric.BETA}", metric=metric.BETA)
MISMATCH = Need(f"the metric {metric.LOGPROB_MISMATCH}", metric=metric.LOGPROB_MISMATCH)
SAMPLER = Need(f"the metric {metric.SAMPLER_KL}", metric=metric.SAMPLER_KL)
KL = Need(f"the metric {metric.KL_MEAN}", metric=metric.KL_MEAN)
HELD_OUT = Need("evaluations on held-out tasks", held_out=True)


def having(batch: Batch, needs: Sequence[Need]) -> Batch | None:
    """Return the part of a batch that has all `needs`, or None if no rollout has."""
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
    """Return minus the mean log-prob, in nats, of the tokens in the agent's turns, or None if not recorded."""
    surprises = [
        float(p)
        for start, end in (s.token_span for s in trajectory.steps)
        for p, by_agent in zip(logprobs[start:end], agent_mask[start:end], strict=True)
        if by_agent
    ]
    return -math.fsum(surprises) / len(surprises) if any(surprises) else None


def rollout_of(
    trajectory: Trajectory,
    breakdown: RewardBreakdown | None,
    tokens: int = 0,
    apart: Collection[str] = (),
    *,
    advantage: float | None = None,
    surprise: float | None = None,
    loss: Any = None,
    selected: bool = False,
    read: tuple[str, str] | None = None,
) -> RolloutSummary:
    """Summarise a trajectory and its reward for detectors. tokens: agent tokens in the loss. loss: the rollout's
    `LossTerms` of the step. selected: whether training put it into the batch. read: the text of the tokens before the
    first turn, and of the tokens after them.

    A component with unknown weight counts as its raw value. The components then do not sum to the reward.
    """
    sums: dict[str, float] = defaultdict(float)
    for step in breakdown.steps if breakdown is not None else ():
        for name, value in step.components.items():
            known = value.raw if value.contribution is None else value.contribution
            if known is not None:
                sums[name] += known
    written = sum(end - start for start, end in (s.token_span for s in trajectory.steps))
    text = "\n".join(s.text for s in trajectory.steps)
    masked = loss is not None and loss.tokens == 0
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
        text[:TEXT_KEPT],
        len(text),
        trajectory.prompt_id,
        trajectory.expected,
        trajectory.answer or ("" if written else None),
        trajectory.cut,
        "" if trajectory.images or trajectory.seen else trajectory.prompt[-TEXT_KEPT:],
        written,
        advantage,
        surprise,
        loss.entropy / tokens if loss is not None and 0 < tokens <= written and not masked else None,
        masked,
        loss is not None or (False if selected else None),
        None if loss is None else loss.advantage,
        None if read is None else _unread(trajectory.prompt, read[0]),
        None if read is None else _unread(text, read[1]),
        None if trajectory.images or trajectory.seen else hash(tuple(s.observation for s in trajectory.steps)),
    )


def _unread(text: str, read: str) -> float | None:
    """Return the share of a text's words that its tokens lack. Tokenizers may change case and Unicode form."""
    texts = _ROLE.sub("", text), read
    words, known = (set(_WORD.findall(unicodedata.normalize("NFKC", t).casefold())) for t in texts)
    return len(words - known) / len(words) if words else None

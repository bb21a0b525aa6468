"""A rollout as any framework may have recorded it.

`None` always means "not recorded". A recorded NaN stays NaN. Formats create rollouts, and `convert.py` turns them into
rows and bodies of the record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...envs.trajectory import Call as Call
from ...envs.trajectory import Display as Display
from ...rewards.breakdown import RewardBreakdown
from ..runs.types import TokenArrays
from .values import Document, text

AGENT_ROLES = ("assistant", "gpt", "agent", "model", "ai")
"""Roles of the policy."""


@dataclass(frozen=True)
class Message:
    """One message of a conversation. `call_id` and `name` identify the call that a tool message answers. `reward` and
    `advantage` belong to this turn. `display` holds views from the environment."""

    role: str
    text: str
    thought: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    name: str = ""
    error: str | None = None
    reward: float | None = None
    advantage: float | None = None
    stop: str = ""
    seconds: float = 0.0
    display: tuple[Display, ...] = ()

    @property
    def is_agent(self) -> bool:
        return self.role in AGENT_ROLES


@dataclass(frozen=True)
class Score:
    """The value of a reward component, and its weight in the total."""

    value: float | None
    weight: float | None = None


@dataclass(frozen=True)
class Rollout:
    """One rollout. `prompt` and `completion` are messages. The completion begins with the policy's first message.

    `id` is empty if the writer gives none. `same_as_id`: the id is unique, so another rollout with this id is a
    duplicate (prime-rl writes an effective episode twice). `grows`: the id is unique, and the rollout with more turns
    replaces the other (spans of a conversation that continues). `group` is empty if the writer names none. Then the
    rollouts of one prompt in one step form a group. `breakdown` holds the components and penalties of each turn, if the
    writer does (`grpo-tui export`). `tokens` creates the arrays on demand. `unknown` holds reasons for
    missing values that differ from the format's reasons.

    A plain text becomes a user message as prompt and an assistant message as completion. The recorder converts mappings
    such as `{"role": "user", "content": …}`. Raises TypeError for anything else. Ids, groups, answers and errors of
    other types become text.
    """

    prompt: tuple[Message, ...] = ()
    completion: tuple[Message, ...] = ()
    id: str = ""
    same_as_id: bool = False
    grows: bool = False
    step: int | None = None
    group: str = ""
    prompt_id: str = ""
    index: int | None = None
    env: str = ""
    agent: str = ""
    model: str = ""
    split: str = ""
    reward: float | None = None
    components: Mapping[str, Score] = field(default_factory=dict)
    breakdown: RewardBreakdown | None = None
    advantage: float | None = None
    answer: str | None = None
    expected: str | None = None
    correct: bool | None = None
    stop: str = ""
    error: str | None = None
    tokens: Callable[[], TokenArrays[Any] | None] | None = None
    token_count: int | None = None
    policy_version: int | None = None
    extra: Document = field(default_factory=dict)
    task: Document = field(default_factory=dict)
    tools: tuple[Document, ...] = ()
    seconds: float = 0.0
    unknown: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, role in (("prompt", "user"), ("completion", "assistant")):
            value = getattr(self, name)
            if isinstance(value, str):
                object.__setattr__(self, name, (Message(role, value),))
            elif not isinstance(value, Sequence) or (value and not isinstance(value[0], Message | Mapping)):
                wrong = type(value[0] if isinstance(value, Sequence) else value).__name__
                right = 'a text, or messages such as [Message("user", "What is 5 + 1?")]'
                raise TypeError(f"{name} of a Rollout contains a {wrong}; expected {right}")
        for name in ("id", "group", "prompt_id", "answer", "expected", "error"):
            if not isinstance(value := getattr(self, name), str | None):
                object.__setattr__(self, name, text(value))


@dataclass(frozen=True)
class Numbers:
    """Metrics of one step that the writer logged."""

    step: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class Amendment:
    """Values that a writer adds later to another document's rollout, such as prime-rl's annotations. `tokens` extends
    the rollout's arrays."""

    id: str
    step: int | None = None
    reward: float | None = None
    advantage: float | None = None
    extra: Document = field(default_factory=dict)
    error: str | None = None
    tokens: Callable[[Rollout], Callable[[], TokenArrays[Any] | None] | None] | None = None

    def folded(self, rollout: Rollout) -> Rollout:
        return replace(
            rollout,
            reward=rollout.reward if self.reward is None else self.reward,
            advantage=rollout.advantage if self.advantage is None else self.advantage,
            step=self.step if rollout.step is None else rollout.step,
            error=rollout.error or self.error,
            extra={**rollout.extra, **self.extra},
            tokens=rollout.tokens if self.tokens is None else self.tokens(rollout),
        )


@dataclass(frozen=True)
class Named:
    """Rollout ids in a writer's own index. Rollouts that are in no readable file are reported."""

    ids: tuple[str, ...]


@dataclass(frozen=True)
class Expected:
    """A rollout as a writer's own index describes it. Lists show it until its document is read. The document is at
    offset `at` with `length`, in the same file or in `path`, and has `format` if that differs. Without an offset, no
    other document is known. The rollout has an id, and its turns are unknown."""

    rollout: Rollout
    at: int | None = None
    length: int = 0
    path: Path | None = None
    format: str = ""


Item = Rollout | Numbers | Amendment | Named | Expected
"""An item of a document."""

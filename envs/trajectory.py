"""One episode of an agent: plain frozen dataclasses, JSON in and out, no torch.

`TokenArrays` hold the token ids, agent mask and behaviour log-probs of a trajectory. Images are files in the run's
folder, referred to by path, never base64 in a row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .tools import ToolSpec

if TYPE_CHECKING:  # import numpy only when arrays are loaded, so that the viewer opens in a third of a second
    import numpy as np
    from typing_extensions import TypeVar

    A = TypeVar("A", default=np.ndarray)
else:
    A = TypeVar("A")

TEXT = "(text)"
"""The label of a turn that is plain text, without a call."""
PARENT, SHARED = "tree_parent", "tree_turns"
"""Columns of a branching rollout: the `rollout` of its parent, and the number of the parent's turns that it repeats."""
_CANONICAL = json.JSONEncoder(sort_keys=True, default=str)


class StopReason(StrEnum):
    """Why a trajectory ended. Records from other programs may have other values."""

    ANSWER = "answer"
    """The agent ended it."""
    TURN_LIMIT = "turn_limit"
    """The environment ended it on a turn that a limit cut."""
    MAX_TURNS = "max_turns"
    """The agent used all its turns."""
    MAX_TOKENS = "max_tokens"
    """No token was left for another turn."""
    ERROR = "error"
    """The environment failed."""
    TIMEOUT = "timeout"
    """The environment did not answer in time."""


_CUT = frozenset([
    StopReason.TURN_LIMIT, StopReason.MAX_TOKENS, "token_limit", "length", "max_length", "model_length", "truncated",
    "max_output_tokens", "max_new_tokens", "model_context_window_exceeded",
])  # fmt: skip


def is_cut(stop_reason: str) -> bool:
    """Return whether a token limit ended the text, by our stop reasons or those of APIs and other trainers."""
    return stop_reason.rpartition(".")[2].lower() in _CUT


@dataclass(frozen=True)
class StepContext:
    """The facts before a step. Penalty rules check a call against them.

    `facts` holds scalars such as `width` and `height` (pixels) or `frames`. `resources` maps a kind to the ids that
    exist so far, oldest first (`{"mask": ("1", "2")}`).
    """

    modality: str = "text"
    facts: Mapping[str, float | int | str] = field(default_factory=dict)
    resources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Overlay:
    """Marks on the image of a step. Coordinates are pixels of that image. `mask_path` is a PNG, white = inside."""

    image: str | None = None
    mask_path: str | None = None
    box: tuple[float, float, float, float] | None = None
    point: tuple[float, float] | None = None
    path: tuple[tuple[float, float], ...] = ()
    label: str = ""


@dataclass(frozen=True)
class Call:
    """One tool call. `arguments` is any JSON value. If it was not valid JSON, it is the text as written, and `problem`
    gives the reason. `result` is None if none was recorded."""

    name: str
    arguments: Any = None
    id: str = ""
    result: str | None = None
    error: str | None = None
    problem: str | None = None


@dataclass(frozen=True)
class PromptMessage:
    """One message of a prompt: its role and its text."""

    role: str
    text: str
    name: str = ""


@dataclass(frozen=True)
class SeenImage:
    """An image that the policy was shown: width and height in pixels as the model got it, the number of its tokens, and
    the file of the original picture (None: not kept)."""

    width: int
    height: int
    tokens: int
    path: str | None = None


@dataclass(frozen=True)
class Display:
    """A view of a step for people, from the environment: a board, a table, a frame. It is data and never executed.

    kind: `markdown` (tables, too), `ansi` (text with SGR colours), `text`, or `image`. content: the text, or the path
    of the image inside the run's folder.
    """

    kind: str
    content: str
    title: str = ""

    @classmethod
    def table(cls, rows: Sequence[Sequence[object]], title: str = "") -> Display:
        """Build a table from rows of cells. The first row is the header."""
        lines = [
            "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows
        ]
        return cls("markdown", "\n".join([*lines[:1], "|" + "---|" * len(rows[0] if rows else ()), *lines[1:]]), title)


DISPLAYS = ("markdown", "ansi", "text", "image")
"""Kinds of `Display`."""


@dataclass(frozen=True)
class ComponentScore:
    """The score of one reward function, or of one function of an environment's rubric. `name` is the reward component.
    `value` is None if the function does not apply. `why` is its explanation, if it gave one."""

    name: str
    value: float | None
    weight: float = 1.0
    why: str = ""


@dataclass(frozen=True)
class Step:
    """One turn: the text of the agent, its call, and the answer of the environment.

    `text` is the agent's output verbatim, `thought` the part before the call. `action` is the tool's name (None: no
    call could be parsed, see `parse_error`). `error` is an error of the tool or the environment. `token_span` is the
    `[start, end)` of the agent's tokens in the trajectory's `TokenArrays`. `calls` holds all calls of the turn with
    their results, unless `action` and `arguments` (of the first call) are complete. `reward` is None if none was
    recorded. `needs_call`: whether a turn without a call failed to write one, as in this program's environments. In
    records from other programs it is mostly an answer. `scores` come from reward functions. The scores of a whole
    rollout are on its last step. `seen` lists the images that a vision policy was shown with the answer.
    `policy_version` is the number of optimiser steps of the policy that wrote the turn (None: unknown). `server` is the
    address of the inference server that wrote it, or empty. `display` holds the environment's views for people.
    """

    index: int
    text: str
    thought: str = ""
    action: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    parse_error: str | None = None
    observation: str = ""
    images: tuple[str, ...] = ()
    overlay: Overlay | None = None
    context: StepContext = field(default_factory=StepContext)
    reward: float | None = 0.0
    error: str | None = None
    stop_reason: str = "stop"
    token_span: tuple[int, int] = (0, 0)
    seconds: float = 0.0
    calls: tuple[Call, ...] = ()
    needs_call: bool = True
    scores: tuple[ComponentScore, ...] = ()
    seen: tuple[SeenImage, ...] = ()
    policy_version: int | None = None
    server: str = ""
    display: tuple[Display, ...] = ()

    @property
    def unreadable(self) -> bool:
        """Whether the turn should contain a call but none could be parsed."""
        return self.parse_error is not None or (self.action is None and self.needs_call)

    @property
    def is_text(self) -> bool:
        """Whether there was no call because the environment took all of the agent's text as its answer."""
        text = self.arguments.get("text") if len(self.arguments) == 1 else None
        return (
            isinstance(text, str) and self.action is not None and not self.calls and self.text.strip() == text.strip()
        )

    @property
    def label(self) -> str:
        """The tool's name for display, `TEXT` for plain text, `"?"` if no call could be parsed."""
        if self.is_text:
            return TEXT
        return self.action or (TEXT if self.parse_error is None and not self.needs_call else "?")

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(call.name for call in self.calls) if len(self.calls) > 1 else (self.label,)

    @property
    def action_key(self) -> str:
        """The action as a canonical string: two are equal exactly if tool and arguments are equal."""
        if self.action is None:
            return f"?{self.text}"
        return f"{self.action} {_CANONICAL.encode(self.arguments)}"


@dataclass(frozen=True)
class Trajectory:
    """One rollout of one task.

    The rollouts of one prompt in one training step share `group` (GRPO's group). All rollouts of one prompt over the
    whole run share `prompt_id`. `correct` is None if the task has no known answer. `stop_reason` is a `StopReason` or a
    value from another program. Trajectories of one environment share `tools`. `messages` is the prompt with its roles
    if there are several. `agent` names the acting agent in multi-agent runs. `extra` holds the writer's own columns,
    which filters address as `extra.<name>`. `env_reward` is None if none was recorded. `judged_by` is the reward
    function that decided `correct`, or empty for the environment. `seen` lists the prompt's images that a vision policy
    was shown. `meta["offered"]` names the tools that the chat template rendered, if any.
    """

    id: str
    env: str
    prompt_id: str
    group: str
    rollout: int
    prompt: str
    steps: tuple[Step, ...]
    task: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[ToolSpec, ...] = ()
    answer: str | None = None
    expected: str | None = None
    correct: bool | None = None
    env_reward: float | None = 0.0
    modality: str = "text"
    images: tuple[str, ...] = ()
    stop_reason: str = StopReason.ANSWER
    error: str | None = None
    seconds: float = 0.0
    meta: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[PromptMessage, ...] = ()
    agent: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    judged_by: str = ""
    seen: tuple[SeenImage, ...] = ()

    @property
    def cut(self) -> bool:
        """Whether a limit cut the agent's last turn, as in TRL's clipped completions."""
        return is_cut(self.stop_reason) or any(is_cut(step.stop_reason) for step in self.steps[-1:])

    @property
    def branch(self) -> tuple[int, int] | None:
        """The parent's `rollout` and the number of repeated turns. None if the rollout starts at the prompt."""
        return (int(self.extra[PARENT]), int(self.extra[SHARED])) if PARENT in self.extra else None

    @property
    def failed(self) -> bool:
        """Whether the environment failed, so that the rewards are meaningless."""
        return self.stop_reason in (StopReason.ERROR, StopReason.TIMEOUT)

    @property
    def actions(self) -> tuple[str, ...]:
        """The label of each turn, in order."""
        return tuple(s.label for s in self.steps)

    @property
    def own_reward(self) -> float | None:
        """The reward without shaping: from the reward functions if they judge, else from the environment."""
        if not self.judged_by:
            return self.env_reward
        return sum(s.value * s.weight for step in self.steps for s in step.scores if s.value is not None)

    def to_json(self) -> dict[str, Any]:
        """Return a plain dictionary without `tools`, which the record stores once per environment."""
        return {name: value for name, value in asdict(self).items() if name != "tools"}


@dataclass(frozen=True)
class TokenArrays(Generic[A]):
    """Token-level data of one trajectory, all of length T (unpadded): prompt, agent and environment tokens in order.

    token_ids: int32 [T]. agent_mask: bool [T], True where the agent wrote the token. logprobs: float32 [T], log-prob of
    the token under the policy that sampled it (0 where `agent_mask` is False). turn: int16 [T], index of the turn (-1
    in the prompt). An observation belongs to the turn that it answers. advantages: float32 [T] or None. overlays: the
    trainer's values per token, float32 [T], NaN where there is none. `trainer` and `reference` are log-probs under the
    trained policy and the reference, `entropy` is the trainer's in nats.

    `A` is a NumPy array while sampling and a memoryview when read from a record, so that viewers need no NumPy.
    """

    token_ids: A
    agent_mask: A
    logprobs: A
    turn: A
    advantages: A | None = None
    overlays: Mapping[str, A] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.token_ids)  # type: ignore[arg-type] - both have a length


def token_rewards(trajectory: Trajectory, length: int) -> np.ndarray:
    """Assign the rewards of a trajectory's steps to its tokens, float32 [length].

    Each is on the last token that the agent wrote in that step. The reward of a step without tokens is on the last
    token before it, and is dropped if there is none.
    """
    import numpy as np

    rewards = np.zeros(length, dtype=np.float32)
    last = -1
    for step in trajectory.steps:
        start, end = step.token_span
        last = end - 1 if end > start else last
        if last >= 0:
            rewards[last] += step.reward
    return rewards

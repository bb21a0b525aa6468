"""The base of environments: an author writes `reset`, `step` and a list of `ToolSpec`s.

An environment acts on one rollout at a time through a state of its own. `MultiTurnEnv` runs many rollouts
together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypedDict

from typing_extensions import TypeVar

from .agent import Message
from .calls import ToolCall, parse_call
from .content import Picture as Picture
from .explain import explain_calls
from .tools import ToolSpec
from .trajectory import Call, ComponentScore, Display, Overlay, StepContext

if TYPE_CHECKING:
    import numpy as np

Split = Literal["train", "eval"]
PromptStyle = Literal["terse", "full", "native"]
"""The prompt explains how to act (`full`), or states only the task (`terse`), or the model's chat template shows the
tools (`native`)."""
State = TypeVar("State", default=Any)  # a rollout's state
Task = TypeVar("Task", bound=Mapping[str, object], default=Any)  # a JSON row


class ImageStore(Protocol):
    """Where pictures go, such as the run's folder."""

    def save_image(self, array: np.ndarray, name: str, /) -> str:
        """Save `array` (uint8 [H, W, 3] or [H, W]) and return its path relative to the run's folder."""
        ...


@dataclass(frozen=True)
class StepResult:
    """The answer of the environment to one call.

    `produced` are ids of new resources by kind (`{"mask": ("2",)}`), to which later calls may refer. `done` ends the
    rollout with the final `answer`. `correct`: whether the rollout is right so far (None: not known). `error`: the tool
    could not carry out the call, and the rollout continues. `calls` are all calls of a turn that has several, with
    their results. `images` are pictures that the step made. A policy that sees gets them with the observation. `mask`
    and `overlay` are marks on the picture `on_image` (default: the task's first). `display` are views for people, such
    as a board, which the policy does not see.
    """

    observation: str
    reward: float = 0.0
    done: bool = False
    answer: str | None = None
    correct: bool | None = None
    produced: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    images: tuple[Picture, ...] = ()
    overlay: Overlay | None = None
    mask: Picture | None = None
    on_image: Picture | None = None
    error: str | None = None
    calls: tuple[Call, ...] = ()
    display: tuple[Display, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """The judgement of a rollout, once all rollouts of its task have ended.

    scores: components of the reward by name, for the whole rollout. correct: whether it was right. judged_by: the name
    of the judge. extra: columns of the record. error: a failure of the environment, which excludes the rollout from
    training.
    """

    scores: tuple[ComponentScore, ...] = ()
    correct: bool | None = None
    judged_by: str = ""
    extra: Mapping[str, float | int | str] = field(default_factory=dict)
    error: str | None = None


class Demonstrator(Protocol):
    """Shows one way through a task, turn by turn."""

    def next(self, observation: str | None) -> str:
        """Return the text of the next turn. `observation` is the answer to the last one (None at the start)."""
        ...


class FixedTurns:
    """A `Demonstrator` that shows given turns one after another, and then repeats the last one."""

    def __init__(self, *turns: str) -> None:
        self._turns = list(turns)

    def next(self, observation: str | None) -> str:
        return self._turns.pop(0) if len(self._turns) > 1 else self._turns[0]


class EnvOptions(TypedDict, total=False):
    """Options of each `MultiTurnEnv` apart from `max_turns`."""

    turn_timeout_s: float
    workers: int
    image_store: ImageStore | None
    image_tasks: int
    prompt_style: PromptStyle | None


class Env(ABC, Generic[State, Task]):
    """A kind of task in which an agent acts with tools.

    A subclass lists its `tools`, and writes `reset` and `step`. Keyword arguments of its constructor are the
    `env_config` of a dataset row. `step` is only ever called with calls that fit the declared tools: unreadable
    calls, unknown tools, wrong arguments and missing resources are answered before it.
    """

    name: ClassVar[str] = ""
    """How the environment is called in records; the class's name when empty."""
    tools: tuple[ToolSpec, ...] = ()
    modality: str = "text"
    answers_misuse: ClassVar[bool] = False
    """Whether `step` answers calls that do not fit the declared tools itself, as others' environments do."""
    knows_success: bool = True
    """Whether a rollout that a limit ends is wrong, unless a step called it `correct`. If False, it is not known."""

    def __init__(self, tokenizer: object = None, **config: object) -> None:
        if config:
            known = "no options" if type(self).__init__ is Env.__init__ else "other options"
            raise TypeError(f"{type(self).__name__} has {known}: unknown {', '.join(sorted(config))}")
        self.tokenizer: Any = tokenizer

    @abstractmethod
    def reset(self, task: Task) -> tuple[State, list[Message]]:
        """Begin a rollout of `task`: return its state, and the first messages for the agent.

        The messages depend only on the task: all rollouts of a task share one prompt.
        """

    @abstractmethod
    def step(self, state: State, call: ToolCall) -> StepResult:
        """Carry out one call. It may change `state`, which belongs to this rollout."""

    def context(self, state: State) -> StepContext:
        """Return the facts that calls are checked against. The runner adds the resources that steps `produced`."""
        return StepContext(modality=self.modality)

    def parse(self, text: str) -> ToolCall:
        """Read the text of a turn. An environment without tools takes the whole text as the answer."""
        if self.tools:
            return parse_call(text)
        return ToolCall("ANSWER", {"text": text.strip()}, text)

    def explain(self) -> str:
        """Explain the tools and the form of a call to a policy that does not know this environment.

        An environment without tools that reads turns in its own way (`parse`) explains that form here.
        """
        if self.tools:
            return explain_calls(self.tools)
        return "" if type(self).parse is not Env.parse else "Everything that you write is taken as your answer."

    def finish(self, states: Sequence[State]) -> Sequence[Verdict | None]:
        """Judge the rollouts of one task together when all have ended. Returns one verdict for each state, in order.

        `states` lacks rollouts that the environment failed and includes those that a limit ended. None: the rewards of
        the steps stand as they are.
        """
        return [None] * len(states)

    def offered(self) -> Sequence[ToolSpec]:
        """Return the tools that a chat template shows to the policy; by default all."""
        return self.tools

    def images(self, state: State) -> tuple[Picture, ...]:
        """Return the pictures of the task: one for a still, one per frame for a video."""
        return ()

    def expected(self, task: Task) -> str | None:
        """Return the right answer for the record; None if it is not known."""
        answer = task.get("answer")
        return None if answer is None else str(answer)

    @classmethod
    def task_of_question(cls, question: str, images: Sequence[str]) -> dict[str, Any] | None:
        """Return the task of a question in words (serving), with the files of its pictures.

        None if this environment cannot answer such a question. A plain conversation then answers it.
        """
        return {"question": question} | ({"image": images[0]} if images else {})

    def make_tasks(self, split: Split, n: int, seed: int) -> list[dict[str, Any]]:
        """Return `n` tasks as JSON rows. The same arguments give the same rows, and `eval` and `train` share none.

        Raises ValueError for an environment that makes none.
        """
        raise ValueError(f"{type(self).__name__} makes no tasks of its own: name a file of tasks in data.source")

    def demonstrate(self, task: Task, route: str = "right", seed: int = 0) -> Demonstrator:
        """Show one route of `routes` through a task. Raises ValueError for an environment that shows none."""
        raise ValueError(f"{type(self).__name__} has no demonstrations: give sft.data")

    def routes(self, task: Task) -> Sequence[str]:
        """Return the routes that `demonstrate` knows for `task`, `right` first."""
        return ()

    def prefetch(self, tasks: Sequence[Task]) -> None:
        """Prepare for rollouts of these tasks while the agent writes its first turn."""


def env_name(env: Env) -> str:
    """Return the environment's name in records."""
    return type(env).name or type(env).__name__

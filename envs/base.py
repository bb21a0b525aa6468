"""The base class of environments: an author writes `reset`, `step` and a list of `ToolSpec`s.

Each method handles one rollout, whose state is passed in. `MultiTurnEnv` runs many rollouts together.
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
"""`full`: the prompt explains how to act. `terse`: it states only the task. `native`: the model's chat template renders
the tools."""
State = TypeVar("State", default=Any)  # a rollout's state
Task = TypeVar("Task", bound=Mapping[str, object], default=Any)  # a JSON row


class ImageStore(Protocol):
    """Stores pictures, for example in the run's folder."""

    def save_image(self, array: np.ndarray, name: str, /) -> str:
        """Save `array` (uint8 [H, W, 3] or [H, W]) and return its path relative to the run's folder."""
        ...


@dataclass(frozen=True)
class StepResult:
    """The answer of the environment to one call.

    `produced` lists the ids of new resources by kind (`{"mask": ("2",)}`). Later calls may refer to them. `done` ends
    the rollout with the final `answer`. `correct`: whether the rollout is right so far (None: unknown). `error`: the
    tool could not execute the call, and the rollout continues. `calls` holds all calls of a multi-call turn, with their
    results. `images` are pictures that the step made. A vision policy gets them with the observation. `mask` and
    `overlay` are marks on the picture `on_image` (default: the task's first). `display` holds views for people, such as
    a board. The policy does not see them.
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
    """The verdict on a rollout, once all rollouts of its task have ended.

    scores: reward components by name, for the whole rollout. correct: whether it was right. judged_by: the name of the
    judge. extra: columns of the record. error: a failure of the environment. It excludes the rollout from training.
    """

    scores: tuple[ComponentScore, ...] = ()
    correct: bool | None = None
    judged_by: str = ""
    extra: Mapping[str, float | int | str] = field(default_factory=dict)
    error: str | None = None


class Demonstrator(Protocol):
    """Demonstrates one solution of a task, turn by turn."""

    def next(self, observation: str | None) -> str:
        """Return the text of the next turn. `observation` answers the previous one (None at the start)."""
        ...


class FixedTurns:
    """A `Demonstrator` that replays the given turns in order, then repeats the last one."""

    def __init__(self, *turns: str) -> None:
        self._turns = list(turns)

    def next(self, observation: str | None) -> str:
        return self._turns.pop(0) if len(self._turns) > 1 else self._turns[0]


class EnvOptions(TypedDict, total=False):
    """Options of every `MultiTurnEnv`, except `max_turns`."""

    turn_timeout_s: float
    workers: int
    image_store: ImageStore | None
    image_tasks: int
    prompt_style: PromptStyle | None


class Env(ABC, Generic[State, Task]):
    """A kind of task in which an agent acts with tools.

    A subclass lists its `tools` and implements `reset` and `step`. A dataset row's `env_config` supplies the keyword
    arguments of its constructor. `step` receives only calls that match the declared tools. The runner answers
    unreadable calls, unknown tools, wrong arguments and missing resources itself.
    """

    name: ClassVar[str] = ""
    """The environment's name in records. If empty, the class name."""
    tools: tuple[ToolSpec, ...] = ()
    modality: str = "text"
    answers_misuse: ClassVar[bool] = False
    """Whether `step` itself answers calls that do not match the declared tools, as third-party environments do."""
    knows_success: bool = True
    """Whether a rollout that hit a limit counts as wrong unless a step marked it `correct`. If False, it is unknown."""

    def __init__(self, tokenizer: object = None, **config: object) -> None:
        if config:
            known = "no options" if type(self).__init__ is Env.__init__ else "other options"
            raise TypeError(f"{type(self).__name__} has {known}: unknown {', '.join(sorted(config))}")
        self.tokenizer: Any = tokenizer

    @abstractmethod
    def reset(self, task: Task) -> tuple[State, list[Message]]:
        """Start a rollout of `task`. Returns its state and the first messages for the agent.

        The messages must depend only on the task, because all rollouts of a task share one prompt.
        """

    @abstractmethod
    def step(self, state: State, call: ToolCall) -> StepResult:
        """Execute one call. It may modify `state`, which belongs to this rollout."""

    def context(self, state: State) -> StepContext:
        """Return the facts for checking calls. The runner adds the resources that steps `produced`."""
        return StepContext(modality=self.modality)

    def parse(self, text: str) -> ToolCall:
        """Parse the text of a turn. Without tools, the whole text is the answer."""
        if self.tools:
            return parse_call(text)
        return ToolCall("ANSWER", {"text": text.strip()}, text)

    def explain(self) -> str:
        """Explain the tools and the call format to a policy that does not know this environment.

        An environment without tools that overrides `parse` explains its own format here.
        """
        if self.tools:
            return explain_calls(self.tools)
        return "" if type(self).parse is not Env.parse else "Everything that you write is taken as your answer."

    def finish(self, states: Sequence[State]) -> Sequence[Verdict | None]:
        """Judge all rollouts of one task after the last has ended. Returns one verdict per state, in order.

        `states` omits rollouts in which the environment failed and includes those that hit a limit. A verdict of None
        keeps the rewards of the steps.
        """
        return [None] * len(states)

    def offered(self) -> Sequence[ToolSpec]:
        """Return the tools for the chat template to render; by default all."""
        return self.tools

    def images(self, state: State) -> tuple[Picture, ...]:
        """Return the task's pictures: one for a still, one per frame for a video."""
        return ()

    def expected(self, task: Task) -> str | None:
        """Return the right answer for the record, or None if it is unknown."""
        answer = task.get("answer")
        return None if answer is None else str(answer)

    @classmethod
    def task_of_question(cls, question: str, images: Sequence[str]) -> dict[str, Any] | None:
        """Build a task from a user's question and the paths of its pictures, for serving.

        Returns None if this environment cannot answer such a question. A plain conversation then answers it.
        """
        return None if len(images) > 1 else {"question": question} | ({"image": images[0]} if images else {})

    def make_tasks(self, split: Split, n: int, seed: int) -> list[dict[str, Any]]:
        """Return `n` tasks as JSON rows. The result is deterministic, and `eval` and `train` share no rows.

        Raises ValueError if the environment does not generate tasks.
        """
        raise ValueError(f"{type(self).__name__} generates no tasks: set data.source to a file of tasks")

    def demonstrate(self, task: Task, route: str = "right", seed: int = 0) -> Demonstrator:
        """Demonstrate one of the `routes` through a task. Raises ValueError if the environment has none."""
        raise ValueError(f"{type(self).__name__} has no demonstrations: set sft.data")

    def routes(self, task: Task) -> Sequence[str]:
        """Return the routes that `demonstrate` supports for `task`, `right` first."""
        return ()

    def prefetch(self, tasks: Sequence[Task]) -> None:
        """Prepare rollouts of these tasks while the agent writes its first turn."""


def env_name(env: Env) -> str:
    """Return the environment's name in records."""
    return type(env).name or type(env).__name__

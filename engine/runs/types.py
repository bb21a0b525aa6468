"""The data of a record, for readers and writers.

This module also exports the plain data of environments and rewards, so that a viewer imports only from this room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from ...envs.tools import ToolSpec as ToolSpec
from ...envs.trajectory import TEXT as TEXT
from ...envs.trajectory import Call as Call
from ...envs.trajectory import ComponentScore as ComponentScore
from ...envs.trajectory import Overlay as Overlay
from ...envs.trajectory import SeenImage as SeenImage
from ...envs.trajectory import Step as Step
from ...envs.trajectory import StepContext as StepContext
from ...envs.trajectory import TokenArrays as TokenArrays
from ...envs.trajectory import Trajectory as Trajectory
from ...rewards.breakdown import AdvantageFormula as AdvantageFormula
from ...rewards.breakdown import AdvantageTerm as AdvantageTerm
from ...rewards.breakdown import ComponentValue as ComponentValue
from ...rewards.breakdown import NormalizedBy as NormalizedBy
from ...rewards.breakdown import Penalty as Penalty
from ...rewards.breakdown import RewardBreakdown as RewardBreakdown
from ...rewards.breakdown import StepReward as StepReward
from ...rewards.breakdown import comparison as comparison
from .learning import GateCode as GateCode
from .learning import LossTerms as LossTerms
from .learning import NeighbourVote as NeighbourVote
from .learning import Served as Served
from .learning import Use as Use
from .learning import UseKind as UseKind
from .paths import runs_dir


class Split(StrEnum):
    """The part of a run that a rollout belongs to. Records of other programs may use other names."""

    TRAIN = "train"
    EVAL = "eval"
    """Held-out tasks, evaluated between steps of training."""
    VALIDATION = "validation"
    """Held-out tasks, evaluated while serving."""
    ONLINE = "online"
    """Requests that were answered."""
    JUDGE = "judge"
    """Texts of an agent that judges others, which are not rollouts of the policy."""
    REPLACED = "replaced"
    """Rollouts of a step that a resumed training repeated."""


class Phase(StrEnum):
    """A phase of a training step. A process may report other phases."""

    ROLLOUTS = "rollouts"
    SCORING = "scoring"
    """Rewards and advantages."""
    LOG_PROBS = "log-probs"
    """Log-probs under the reference and the policy before the update."""
    BACKWARD = "backward"
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"


RunStatus = Literal["starting", "running", "paused", "stopping", "finished", "stopped", "crashed"]
ENDED = ("finished", "stopped", "crashed")
"""The statuses of a run without a process."""

EventKind = Literal[
    "beta",  # data: from, to, reason, mean_kl, target_kl, tolerance
    "snapshot",  # data: version, action (published | loaded | held | rolled_back), path
    "alert",  # a finding of a detector: data: detector, subject, severity, value, threshold, trajectories (ids)
    "note",  # a harmless finding: the same data
    "checkpoint",  # data: path
    "eval",  # data: split, greedy, sampled, n
    "feedback",  # a person's verdict on an answer; data: request, verdict, answer, source
    "control",  # data: command, outcome; the run acknowledges a request
    "rewards",  # rewards that apply from here on; data: weights (before annealing) and rules (amounts), by name
    "phase",  # data: name (loading, sft, training, evaluating, saving)
    "record",  # trouble with the record itself (full disk, dropped rows): data: reason, dropped
    "error",  # data: where, traceback
]


@dataclass(frozen=True)
class Progress:
    """The progress of a run within its current step: `done` of `total` parts of a phase (0 of 0: it has no parts).

    phase: a `Phase`, or the process's own name. began: the start of the phase in seconds since the epoch. took: the
    phase's last duration in seconds (None: unknown).
    """

    phase: str = ""
    done: int = 0
    total: int = 0
    began: float | None = field(default=None, compare=False)
    took: float | None = field(default=None, compare=False)


@dataclass(frozen=True)
class RunInfo:
    """Facts of a run, from `run.json` and its processes. Times are seconds since the epoch."""

    id: str
    path: str
    mode: str
    status: RunStatus
    name: str = ""
    environment: str = ""
    model: str = ""
    created: float = 0.0
    ended: float | None = None
    step: int = 0
    total_steps: int | None = None
    pid: int | None = None
    exit_code: int | None = None
    error: str | None = None
    progress: Progress | None = None
    heard: float | None = None
    """The time of the run's last report or record, in seconds since the epoch."""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def active(self) -> bool:
        return self.status not in ENDED

    @property
    def reference(self) -> str:
        """The run in a command for the same shell: its id, or its path if it is not in the default folder of runs."""
        from shlex import quote  # local import: a list of runs does not need it

        return self.id if Path(self.path).absolute().parent == runs_dir() else quote(self.path)

    @property
    def resume_command(self) -> str:
        """The command that continues the run; empty for a run that no command continues."""
        others = {"online": "online --resume", "eval": "eval", "play": "", "recorded": "", "dump": ""}
        command = others.get(self.mode, "train --resume")
        return f"grpo-tui {command} {self.reference}" if command else ""


@dataclass(frozen=True)
class TrajectoryRecord:
    """A trajectory with its results, as given to the writer.

    `advantage` is the scalar that people compare within the group: the mean over its agent tokens if advantages are per
    token. Per-token values are in `tokens.advantages`. `step_advantages`: one per turn. `formula`: their computation
    (None: not recorded). `use`: how its own step's update used it (None: not recorded, or nothing learns from it).
    `served`: the online vote that it took part in. `token_count`: the number of tokens if only that is known.
    `unknown`: the parts that were not recorded (`reward`, `weight`, `advantage`, …), each with the reason in a
    sentence. `log_ratio_sum`: log π − log π_ref in nats, summed over its agent tokens (None: there is no reference).
    The KL of a step is the mean over all tokens.
    """

    trajectory: Trajectory
    breakdown: RewardBreakdown | None = None
    advantage: float | None = None
    step_advantages: Sequence[float] = ()
    tokens: TokenArrays[Any] | None = None
    policy_version: int | None = None
    split: str = Split.TRAIN
    formula: AdvantageFormula | None = None
    use: Use | None = None
    served: Served | None = None
    token_count: int | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)
    log_ratio_sum: float | None = None

    @property
    def reward(self) -> float | None:
        """The total of the breakdown. Rollouts without one, such as evaluations, have only their own reward."""
        return self.trajectory.own_reward if self.breakdown is None else self.breakdown.total


@dataclass(frozen=True)
class Event:
    """An event at a step. `message` is one sentence for people."""

    kind: EventKind
    message: str
    step: int = 0
    data: Mapping[str, Any] = field(default_factory=dict)
    time: float = 0.0
    id: int = 0


@dataclass(frozen=True)
class TrajectoryRow:
    """One line of a list of trajectories.

    `n`: the row's number in recording order (1-based, dense per run), by which pages are read. `rules`: the broken
    penalty rules, each once. `prompt` and `answer` may be truncated. `uses`: how the updates of its own and later steps
    used it, as `learning.MARKS` (None: not recorded). `gate`, `confidence`, `sent`: see `Served`; empty or None for a
    rollout that answered no request. `step` and `tokens` are None if not recorded. `extra` holds the writer's own
    columns.
    """

    n: int
    id: str
    step: int | None
    group: str
    prompt_id: str
    rollout: int
    env: str
    split: str
    reward: float | None
    advantage: float | None
    correct: bool | None
    turns: int | None
    tokens: int | None
    penalties: int
    stop_reason: str
    actions: tuple[str, ...]
    prompt: str
    answer: str | None
    rules: tuple[str, ...] = ()
    policy_version: int | None = None
    uses: tuple[str, ...] | None = None
    gate: str = ""
    confidence: float | None = None
    sent: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    answered: bool = True
    """Whether `answer` is an answer, and not only the last text."""

    @property
    def words(self) -> str | None:
        """The answer of a rollout that called no tool; None for other rollouts."""
        return self.answer if self.actions and set(self.actions) <= {TEXT} else None

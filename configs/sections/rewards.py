"""The shaped reward: components, weights, normalisation and penalties."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator

from .base import Section

COMPONENTS = ("task", "environment", "curiosity", "coherence", "penalty")
"""All reward components, in the order of summation and display."""

SHAPED = ("curiosity", "coherence", "penalty")
"""Components that guide learning but are not the goal."""

Normalization = Literal["zscore", "scale_only", "group", "none"]
"""How one component is normalised; docs/architecture/rewards.md compares the modes."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_CLASS_PATH = re.compile(r"(?:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+|[^:]+\.py:[A-Za-z_]\w*)")


def _penalty(value: float) -> float:
    if value > 0:
        raise ValueError(f"{value:g} would be a bonus; a penalty is negative, or 0 to switch it off: -{value:g}")
    return value


def _class_path(value: str) -> str:
    if not _CLASS_PATH.fullmatch(value):
        raise ValueError(f"{value!r} names no class: write package.module.Class or path/to/file.py:Class")
    return value


Cost = Annotated[float, AfterValidator(_penalty)]
ClassPath = Annotated[str, AfterValidator(_class_path)]


class NormalizationConfig(Section):
    """Normalisation of each component: `zscore` (running mean and std), `scale_only` (running std, no centring),
    `group` (within each prompt's group: GDPO, arXiv 2601.05242) or `none`."""

    task: Normalization = "none"
    """Correctness, which already has a known scale."""
    environment: Normalization = "none"
    """The environment's own rewards, on the environment's scale."""
    curiosity: Normalization = "zscore"
    """Prediction errors. Their scale depends on the embeddings and falls as the dynamics model learns."""
    coherence: Normalization = "zscore"
    """Cosine similarities. They are often all near 1, so only their differences matter."""
    penalty: Normalization = "none"
    """Penalties. Their amounts are configured, and 0 must stay 0."""
    functions: Normalization = "none"
    """Reward functions, each separately. `none` sums them as TRL does; `group` is GDPO."""

    epsilon: ClassVar[float] = 1e-4
    """Added to the std before dividing."""
    std_floor: ClassVar[float] = 1e-3
    """Smallest std to divide by, so that a nearly constant component is not amplified into noise."""
    clip: ClassVar[float] = 10.0
    """Largest absolute value after `zscore` and `scale_only`, so that one outlier cannot dominate a batch."""
    min_count: ClassVar[int] = 32
    """Until a component has this many values, its statistics include the batch that is being scored."""


class PenaltyAmounts(Section):
    """The amount of each rule, before weighting by `w_penalty`: a negative number, or 0 to disable the rule."""

    wrong_modality: Cost = -0.2
    """A tool used on an unsupported input (`TRACK_OBJECT` on a still image)."""
    missing_prerequisite: Cost = -0.1
    """A reference to something that does not exist (`GET_PROPERTIES` without a valid mask)."""
    invalid_argument: Cost = -0.1
    """A missing or unknown argument, or one of the wrong type or out of bounds."""
    unknown_tool: Cost = -0.1
    """A call to a tool that the environment does not have."""
    unparsable_call: Cost = -0.1
    """A turn without a parsable call."""
    no_final_answer: Cost = -0.1
    """An episode that ends without an answer."""


class PenaltyRuleConfig(Section):
    """Your own penalty rule."""

    class_path: ClassPath
    """`package.module.Class`, or `path/to/file.py:Class`: a subclass of `grpo_tui.rewards.penalties.PenaltyRule`."""
    amount: Cost | None = None
    """The amount of the rule; null: the class's `amount`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """More keyword arguments of the class."""


class ExtraComponentConfig(Section):
    """A reward component in addition to the built-in ones."""

    class_path: ClassPath | None = None
    """`package.module.Class`, or `path/to/file.py:Class`: a subclass of `grpo_tui.rewards.components.RewardComponent`;
    null: the package's component of this name."""
    weight: float = Field(default=1.0, ge=0)
    """Weight of the normalised value."""
    normalization: Normalization = "none"
    """See `rewards.normalization`."""
    embeddings: bool = False
    """Whether the component reads the state embeddings of the steps."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the class."""


class DiagnosisConfig(Section):
    """Thresholds of the detectors that watch the recorded batches."""

    window: int = Field(default=20, ge=2)
    """Number of steps over which trends are measured."""
    advantage_share: float = Field(default=0.5, gt=0, le=1)
    """Share of the advantage's variance above which a component other than task, environment and reward functions is
    reported."""
    reward_rise: ClassVar[float] = 0.5
    """Rise of the mean reward over the window, in stds of the reward, above which success should rise too."""
    success_rise: ClassVar[float] = 0.01
    """Rise of task success over the window below which success counts as not rising."""
    action_share: float = Field(default=0.9, gt=0, le=1)
    """Share of all actions above which a single action counts as a collapse."""
    entropy_fall: float = Field(default=0.2, gt=0, lt=1)
    """Fraction of its highest value in the window below which policy entropy counts as a collapse."""
    length_fall: float = Field(default=0.5, gt=0, lt=1)
    """Fraction of their highest value in the window below which tokens per trajectory count as a collapse."""
    logprob_mismatch: float = Field(default=0.05, gt=0)
    """Mean difference between server and trainer log-probs, in nats per token, above which it is reported."""
    sampler_share: ClassVar[float] = 0.5
    """KL between sampler and trainer, as a share of the KL to the reference, above which it is reported."""
    kl_rise: float = Field(default=0.2, gt=0)
    """Rise of the KL to the reference within five steps, in nats per token, above which it is reported."""
    movement: ClassVar[float] = 0.05
    """Change of the weights, as a share of the sum of the learning rates, below which no movement is reported."""
    no_variance_share: ClassVar[float] = 0.6
    """Share of groups whose rollouts all have the same reward, above which it is reported."""
    stop_on: list[str] = Field(default_factory=list)
    """Causes that stop the run with a checkpoint, such as [not_finite, kl_rise]. A cause is a detector whose warning no
    other warning explains."""
    evidence: ClassVar[int] = 5
    """Maximum number of trajectories that a finding names."""


class RewardsConfig(Section):
    """Weights and settings of the reward components."""

    w_task: float = Field(default=1.0, ge=0)
    """Weight of the final answer's correctness (1 or 0, on the last step)."""
    w_environment: float = Field(default=1.0, ge=0)
    """Weight of the environment's own rewards per step. If the correctness of the answer is known, it replaces the
    reward of the last step. At 0, the rewards count only for tasks without a known answer, where their sum is the task
    reward."""
    w_curiosity: float = Field(default=0.01, ge=0)
    """Weight of the dynamics model's prediction error."""
    w_coherence: float = Field(default=0.01, ge=0)
    """Weight of the similarity of consecutive steps, minus repetition."""
    w_penalty: float = Field(default=0.1, ge=0)
    """Weight of the penalties, which are negative."""
    anneal_steps: int = Field(default=0, ge=0)
    """Steps over which the weights of curiosity, coherence and penalty fall to 0; 0: constant weights."""
    normalization: NormalizationConfig = NormalizationConfig()
    penalties: PenaltyAmounts = PenaltyAmounts()
    penalty_rules: list[PenaltyRuleConfig] = Field(default_factory=list)
    """Your own penalty rules, in addition to the built-in ones."""
    extra_components: dict[str, ExtraComponentConfig] = Field(default_factory=dict)
    """Additional components, keyed by the name that the record and the app show."""
    diagnosis: DiagnosisConfig = DiagnosisConfig()

    @field_validator("extra_components")
    @classmethod
    def _own_names(cls, value: dict[str, ExtraComponentConfig]) -> dict[str, ExtraComponentConfig]:
        for name in value:
            if name in COMPONENTS:
                raise ValueError(f"{name} is a built-in component: give yours another name")
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a valid name: use lower-case letters, digits and _, a letter first")
        return value

    def weight(self, component: str, step: int = 0) -> float:
        """Return the weight of a component after `step` optimiser steps."""
        if component in self.extra_components:
            return self.extra_components[component].weight
        return float(getattr(self, f"w_{component}")) * self.annealing(component, step)

    def annealing(self, component: str, step: int) -> float:
        """Return the fraction of a component's weight that remains after `step` optimiser steps."""
        return max(0.0, 1.0 - step / self.anneal_steps) if component in SHAPED and self.anneal_steps else 1.0

    @property
    def needs_embeddings(self) -> bool:
        """Whether a component with a positive weight reads state embeddings."""
        extra_needs = any(extra.embeddings and extra.weight > 0 for extra in self.extra_components.values())
        return extra_needs or self.w_curiosity > 0 or self.w_coherence > 0

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each component before annealing, in the order of summation."""
        return {name: self.weight(name) for name in (*COMPONENTS, *self.extra_components)}

    def normalization_of(self, component: str) -> Normalization:
        """Return the normalisation of a component. One without its own setting is a reward function."""
        extra = self.extra_components.get(component)
        key = component if component in COMPONENTS else "functions"
        return getattr(self.normalization, key) if extra is None else extra.normalization

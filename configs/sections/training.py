"""The two kinds of training: supervised fine-tuning, and reinforcement fine-tuning with GRPO (arXiv 2402.03300)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from .base import Section

TRLLoss = Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"]
OwnLoss = Literal["reinforce"]
"""Losses in `engine/training/losses`. Each is the function of that name in the file of that name."""
Advantages = Literal["group", "turn", "reward", "gdpo", "gigpo", "tree"]
"""Methods in `rewards/advantages`. Each is a class in the file of that name."""
OwnCode = Annotated[str, Field(pattern=r"[.:]", description="file.py:Name for your own code")]

TRL_LOSSES: tuple[str, ...] = get_args(TRLLoss)
OWN_LOSSES: tuple[str, ...] = get_args(OwnLoss)
METHODS: tuple[str, ...] = get_args(Advantages)


class Optimisation(Section):
    """Optimiser and checkpoint settings shared by both kinds of training."""

    learning_rate: float = Field(default=1e-5, gt=0)
    trl: dict[str, Any] = Field(default_factory=dict)
    """More fields of TRL's configuration, such as `lr_scheduler_type: cosine`. docs/from-grpoconfig.md lists them."""
    save_every: int = Field(default=50, ge=0)
    """Steps between checkpoints; 0: only by time. The start, the first step and the end always have a checkpoint."""
    save_minutes: float = Field(default=5.0, ge=0)
    """Maximum minutes between checkpoints; 0: only by steps."""


class ReplayConfig(Section):
    """Handling of groups whose rollouts all have the same reward and therefore no gradient.

    Selective sample replay (SSR, VL-Rethinker) replaces them with earlier trajectories from a buffer, drawn with
    p proportional to |A|^alpha * exp(-age / tau). Groups in which every rollout succeeded stay in the batch. Dynamic
    sampling (DAPO) replaces groups with rollouts of other prompts.
    """

    mode: Literal["off", "ssr", "dapo"] = "ssr"
    min_group_std: float = Field(default=1e-3, ge=0)
    """Minimum standard deviation of a group's rewards. Groups below it are filtered out, except with `mode: off`."""
    signal: Literal["task", "reward"] = "task"
    """The rewards that `min_group_std` applies to. `task`: task and environment rewards. Groups that differ only in
    shaping are filtered out, unless every rollout succeeded and shaping decides between peers. `reward`: the total
    reward, for tasks on which few rollouts succeed."""
    capacity: int = Field(default=1024, ge=1)
    """Maximum number of trajectories in the buffer. The oldest are dropped first."""
    alpha: float = Field(default=1.0, ge=0)
    """Preference for trajectories with large advantages; 0: none."""
    tau: float = Field(default=4.0, gt=0)
    """Age in steps at which the probability of a draw has decayed to 1/e."""
    max_age: int = Field(default=12, ge=1)
    """Maximum age of a drawn trajectory, in steps."""
    max_rounds: int = Field(default=3, ge=1)
    """`dapo`: maximum rounds of generation with other prompts before training continues with the groups at hand."""


class TreeConfig(Section):
    """`advantages: tree`. The environment must be deterministic, because branches repeat turns."""

    fresh: int | None = Field(default=None, ge=1)
    """Rollouts of a group that start at the prompt; null: half of the group. Each other rollout branches from a random
    turn of one of them."""


class DistillationConfig(Section):
    """On-policy distillation (GKD, arXiv 2306.13649; Thinking Machines Lab, "On-Policy Distillation", 2025).

    A teacher scores the tokens of the policy's own rollouts. The advantage of each token gains
    `weight` · (log π_teacher − log π), minus the mean over the batch.
    """

    teacher: str | None = None
    """The teacher: a model with the policy's vocabulary (a folder or hub id), a folder of adapters for `model.base`, or
    the address of a vLLM server (`http://127.0.0.1:8000`; `#NAME` selects a model other than the first). null: no
    teacher."""
    weight: float = Field(default=1.0, gt=0)
    with_reward: bool = True
    """Add the teacher's advantages to those of the reward. false: use only the teacher's."""


class TrainingConfig(Optimisation):
    """`--mode rft`. `configs/model_defaults.py` derives unset values from the model."""

    max_steps: int | None = Field(default=None, ge=1)
    """Optimiser steps; null: one pass over the data, limited to 30 to 500 steps."""
    prompts_per_step: int = Field(default=16, ge=1)
    """Distinct prompts per optimiser step, over all processes."""
    num_generations: int = Field(default=8, ge=2)
    """Rollouts per prompt: GRPO's group size."""
    micro_batch_size: int | None = Field(default=None, ge=1)
    """Trajectories per backward pass of one process; null: as many as fit `micro_batch_tokens`, or fewer if that avoids
    recomputing layers (`model.gradient_checkpointing`)."""
    micro_batch_tokens: int = Field(default=16384, ge=1)
    """Token budget of a backward pass. Each trajectory counts as `max_trajectory_tokens`."""

    advantages: Advantages | OwnCode = "group"
    """The advantage estimator, or a class of your own. `reward`: the unchanged reward of each turn, on its last token.
    `group`: return minus the group's mean. `turn`: return from a turn on, minus the group's mean at that turn. `gdpo`:
    each reward component normalised within its group, then the weighted sum normalised over the batch (arXiv
    2601.05242). `gigpo`: `group`, plus the discounted return from a turn on minus the mean of the group's turns after
    the same observation (arXiv 2505.10978). `tree`: rollouts branch from turns of others (`training.tree`). Each turn
    gets the mean return of the rollouts that share it, minus the average of two means: that of the group and that at
    the start of its branch (arXiv 2509.21240)."""
    compare_shaping: Literal["peers", "group"] = "peers"
    """Baseline of curiosity, coherence and penalties with `advantages: group` or `gdpo`. `peers`: compare each one
    separately among the group's rollouts with the same success (all of them without a known answer), so that it decides
    between peers and never outweighs success. `group`: compare with the whole group; with `advantages: group`, as part
    of the return."""
    scale_advantages: Literal["group", "batch", "none"] = "group"
    """Divisor of advantages: the standard deviation of the group or of the batch, or none. Shaping that decides between
    peers is always divided by its own. `gdpo` and `reward` ignore this setting."""
    loss_type: TRLLoss | OwnLoss | OwnCode = "dapo"
    """The loss: one of TRL's, `reinforce`, or a function of your own (`engine/training/losses`)."""
    beta: float = Field(default=0.01, ge=0)
    """Weight of the KL penalty to the reference policy; with `beta_mode: auto`, the initial weight."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the KL penalty in the loss, with d = log π_ref − log π: −d, d² / 2, or e^d − d − 1."""
    beta_mode: Literal["fixed", "auto"] = "fixed"
    target_kl: float = Field(default=0.05, gt=0)
    """`beta_mode: auto`: target KL to the reference, in nats per token."""
    kl_tolerance: float = Field(default=0.01, ge=0)

    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Minimum probability of a sampled token relative to the most likely one; 0: no minimum."""
    repetition_penalty: float = Field(default=1.0, gt=0)
    """Divides positive logits of tokens that already occurred and multiplies negative ones; 1: no penalty."""
    max_turn_tokens: int = Field(default=512, ge=1)
    max_trajectory_tokens: int = Field(default=2048, ge=1)

    replay: ReplayConfig = ReplayConfig()
    tree: TreeConfig = TreeConfig()
    distillation: DistillationConfig = DistillationConfig()
    placement: Literal["auto", "main", "sharded"] = "auto"
    """Where rollouts run with several processes. `main`: on the main process. `auto`, `sharded`: each process runs its
    share."""

    eval_every: int = Field(default=25, ge=0)
    """Steps between evaluations on held-out tasks; 0: only at the start and end."""
    keep_checkpoints: int = Field(default=2, ge=1)
    keep_adapters: int = Field(default=8, ge=0)
    """Number of older checkpoints, spread over the run, whose adapters are kept for `eval` and `bisect`."""
    output_dir: str = "saved_models/rft_adapters"
    """Link to the adapters of the latest finished run. The adapters of each run are next to it, in a folder with the
    run's id (`rft_adapters-1120-0949-k3f9`). An existing folder at this path is not replaced."""

    @property
    def fresh(self) -> int | None:
        """The number of rollouts of a group that start at the prompt, if others branch from them."""
        return (self.tree.fresh or self.num_generations // 2) if self.advantages == "tree" else None

    @property
    def clip_range(self) -> tuple[float, float]:
        """How far the probability ratio may fall below 1 and rise above it before it is clipped."""
        low = self.trl.get("epsilon", 0.2)
        high = self.trl.get("epsilon_high")
        return low, low if high is None else high

    @property
    def shaping_apart(self) -> bool:
        """Whether shaping only decides between peers and is not part of the compared return."""
        return self.compare_shaping == "peers" and self.advantages in ("group", "gdpo")


class SFTConfig(Optimisation):
    """`--mode sft`."""

    epochs: float = Field(default=1.0, gt=0)
    max_steps: int | None = Field(default=None, ge=1)
    """Stop after this many optimiser steps, even before the end of `epochs`."""
    batch_size: int = Field(default=16, ge=1)
    """Conversations per optimiser step of one process."""
    micro_batch_size: int | None = Field(default=None, ge=1)
    """Conversations per backward pass, a divisor of `batch_size`; null: all of them."""
    learning_rate: float = Field(default=2e-4, gt=0)
    demonstrations: int = Field(default=2048, ge=1)
    """Number of demonstrations that the environment makes (`Env.demonstrate`) without `sft.data`."""
    route: str = "right"
    """The route to demonstrate, by the name that the environment gives it."""
    max_tokens: int = Field(default=1024, ge=8)
    """Maximum tokens of a conversation. Longer ones are skipped."""
    data: str | None = None
    """JSONL file of conversations (`messages`), used instead of the environment's demonstrations. A conversation opens
    with the roles system and user. Then assistant and user alternate, because observations have the role user."""
    eval_tasks: int | None = Field(default=None, ge=0)
    """Number of held-out tasks of the environment that measure success before and after training; 0: none; null: 64,
    or 0 with `sft.data`."""
    output_dir: str = "saved_models/sft_adapters"
    """Link to the adapters of the latest finished run; see `training.output_dir`."""

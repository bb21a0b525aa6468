"""The two kinds of training: supervised fine-tuning, and reinforcement fine-tuning with GRPO (arXiv 2402.03300)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from .base import Section

TRLLoss = Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"]
OwnLoss = Literal["reinforce"]
"""Those of `engine/training/losses`, each the function of its name in the file of its name."""
Advantages = Literal["group", "turn", "reward", "gdpo", "gigpo", "tree"]
"""Those of `rewards/advantages`, each the class of its name in the file of its name."""
OwnCode = Annotated[str, Field(pattern=r"[.:]", description="file.py:Name for code of your own")]

TRL_LOSSES: tuple[str, ...] = get_args(TRLLoss)
OWN_LOSSES: tuple[str, ...] = get_args(OwnLoss)


class Optimisation(Section):
    """The settings of an optimiser and of checkpoints that both kinds of training have."""

    learning_rate: float = Field(default=1e-5, gt=0)
    trl: dict[str, Any] = Field(default_factory=dict)
    """Further fields of TRL's configuration, such as `lr_scheduler_type: cosine`: docs/from-grpoconfig.md."""
    save_every: int = Field(default=50, ge=0)
    """Steps between checkpoints; 0: by time alone. There is always one at the start, after the first step and at the
    end."""
    save_minutes: float = Field(default=5.0, ge=0)
    """Minutes after which a checkpoint is due in any case; 0: by steps alone."""


class ReplayConfig(Section):
    """What happens to groups whose rollouts all earned the same, and so carry no gradient.

    Selective sample replay (SSR, VL-Rethinker) fills their places from a buffer of earlier trajectories, drawn with
    p proportional to |A|^alpha * exp(-age / tau), but for groups that are all right, which stay; dynamic sampling
    (DAPO) generates other prompts instead.
    """

    mode: Literal["off", "ssr", "dapo"] = "ssr"
    min_group_std: float = Field(default=1e-3, ge=0)
    """A group whose rewards have a smaller standard deviation is filtered out; not with `mode: off`."""
    signal: Literal["task", "reward"] = "task"
    """Which rewards those are: `task`, those of task and environment, so that groups which differ in shaping alone are
    filtered out, but for those that are all right where shaping decides between peers; `reward`, the whole, for tasks
    on which hardly any rollout succeeds."""
    capacity: int = Field(default=1024, ge=1)
    """Trajectories that the buffer holds at most; the oldest go first."""
    alpha: float = Field(default=1.0, ge=0)
    """How strongly large advantages are preferred; 0: not at all."""
    tau: float = Field(default=4.0, gt=0)
    """Age in steps at which the chance to be drawn has fallen to 1/e."""
    max_age: int = Field(default=12, ge=1)
    """Steps after which a trajectory is never drawn again."""
    max_rounds: int = Field(default=3, ge=1)
    """`dapo`: how often to generate again before training on what there is."""


class TreeConfig(Section):
    """`advantages: tree`. The environment must answer the same turns in the same way, because branches repeat turns."""

    fresh: int | None = Field(default=None, ge=1)
    """Rollouts of a group that start at the prompt. Each of the others branches from a random turn of one of these;
    null: half of the group."""


class DistillationConfig(Section):
    """On-policy distillation (GKD, arXiv 2306.13649; Thinking Machines Lab, "On-Policy Distillation", 2025).

    A teacher scores the tokens of the policy's own rollouts. The advantage of each token gains
    `weight` · (log π_teacher − log π), minus the mean over the batch.
    """

    teacher: str | None = None
    """A model with the policy's vocabulary (a folder or hub id), a folder of adapters for `model.base`, or the address
    of a vLLM server (`http://127.0.0.1:8000`, with `#NAME` for a model other than its first); null: no teacher."""
    weight: float = Field(default=1.0, gt=0)
    with_reward: bool = True
    """Keep the advantages of the reward. False: only the teacher's count."""


class TrainingConfig(Optimisation):
    """`--mode rft`. Unset values follow from the model: `configs/model_defaults.py`."""

    max_steps: int | None = Field(default=None, ge=1)
    """Optimiser steps; null: one pass over the data, within 30 to 500 steps."""
    prompts_per_step: int = Field(default=16, ge=1)
    """Different prompts in one optimiser step, over all processes."""
    num_generations: int = Field(default=8, ge=2)
    """Rollouts per prompt: GRPO's group size."""
    micro_batch_size: int | None = Field(default=None, ge=1)
    """Trajectories per backward pass of one process; null: as many as fit `micro_batch_tokens`, or fewer whole groups
    if no layer has to be run again then (`model.gradient_checkpointing`)."""
    micro_batch_tokens: int = Field(default=16384, ge=1)
    """Token budget of a backward pass, counted at `max_trajectory_tokens` a trajectory."""

    advantages: Advantages | OwnCode = "group"
    """`reward`: the reward of each turn as it is, on its last token; `group`: return minus the group's mean; `turn`:
    return from a turn on, minus the group's mean at that turn; `gdpo`: each component of the reward against its own
    group, then the weighted sum over the batch (arXiv 2601.05242); `gigpo`: `group`, plus the discounted return from a
    turn on, minus the mean of the group's turns after the same observation (arXiv 2505.10978); `tree`: rollouts branch
    from turns of others (`training.tree`), and each turn has the mean return of those that share it, minus the means of
    the group and where its branch began (arXiv 2509.21240); or a class of your own."""
    compare_shaping: Literal["peers", "group"] = "peers"
    """What curiosity, coherence and penalties are compared with by `group` and `gdpo`. `peers`: each on its own, with
    the rollouts of the group that succeeded alike (all of them where no answer is known), so that it decides between
    peers and never outweighs success. `group`: with the whole group; by `group` as a part of the return."""
    scale_advantages: Literal["group", "batch", "none"] = "group"
    """What advantages are divided by: the group's standard deviation, the batch's, or nothing. Shaping that decides
    between peers is always divided by its own; `gdpo` and `reward` do not ask."""
    loss_type: TRLLoss | OwnLoss | OwnCode = "dapo"
    """What is minimised: one of TRL's, `reinforce`, or a function of your own (`engine/training/losses`)."""
    beta: float = Field(default=0.01, ge=0)
    """Weight of the KL penalty to the reference policy (at the start, when `beta_mode` is auto)."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """The estimator of the KL penalty in the loss, with d = log π_ref − log π: −d, d² / 2, or e^d − d − 1."""
    beta_mode: Literal["fixed", "auto"] = "fixed"
    target_kl: float = Field(default=0.05, gt=0)
    """`auto`: nats per token that beta steers to."""
    kl_tolerance: float = Field(default=0.01, ge=0)

    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Only tokens at least this likely, relative to the likeliest, are drawn; 0: all."""
    repetition_penalty: float = Field(default=1.0, gt=0)
    """Divides positive logits of tokens that were already written, and multiplies negative ones; 1: none."""
    max_turn_tokens: int = Field(default=512, ge=1)
    max_trajectory_tokens: int = Field(default=2048, ge=1)

    replay: ReplayConfig = ReplayConfig()
    tree: TreeConfig = TreeConfig()
    distillation: DistillationConfig = DistillationConfig()
    placement: Literal["auto", "main", "sharded"] = "auto"
    """Where rollouts happen with several processes: on the main one, or each process its share (`auto`)."""

    eval_every: int = Field(default=25, ge=0)
    """Steps between evaluations on held-out tasks; 0: only at the end."""
    keep_checkpoints: int = Field(default=2, ge=1)
    keep_adapters: int = Field(default=8, ge=0)
    """How many older checkpoints leave their adapters, spread over the run, for `eval` and `bisect`."""
    output_dir: str = "saved_models/rft_adapters"
    """A link to the adapters of the latest finished run. Those of each run are beside it, in a folder with the run's id
    (`rft_adapters-1120-0949-k3f9`). A folder that is already there stays as it is."""

    @property
    def fresh(self) -> int | None:
        """Rollouts of a group that start at the prompt, if others branch from these."""
        return (self.tree.fresh or self.num_generations // 2) if self.advantages == "tree" else None

    @property
    def clip_range(self) -> tuple[float, float]:
        """How far the probability ratio may fall below 1 and rise above it before it is clipped."""
        low = self.trl.get("epsilon", 0.2)
        high = self.trl.get("epsilon_high")
        return low, low if high is None else high

    @property
    def shaping_apart(self) -> bool:
        """Whether shaping decides between peers alone, and is no part of the compared return."""
        return self.compare_shaping == "peers" and self.advantages in ("group", "gdpo")


class SFTConfig(Optimisation):
    """`--mode sft`."""

    epochs: float = Field(default=1.0, gt=0)
    max_steps: int | None = Field(default=None, ge=1)
    """Stop after this many optimiser steps, even within `epochs`."""
    batch_size: int = Field(default=16, ge=1)
    """Conversations in one optimiser step of one process."""
    micro_batch_size: int | None = Field(default=None, ge=1)
    """Conversations per backward pass, a divisor of `batch_size`; null: all of them."""
    learning_rate: float = Field(default=2e-4, gt=0)
    demonstrations: int = Field(default=2048, ge=1)
    """How many demonstrations the environment makes (`Env.demonstrate`) when there is no file of them."""
    route: str = "right"
    """Which of the environment's routes is shown."""
    max_tokens: int = Field(default=1024, ge=8)
    """Conversations with more tokens are left out."""
    data: str | None = None
    """A JSONL file of conversations (`messages`), instead of the environment's demonstrations. The opening has the
    roles system and user; then assistant and user alternate, because observations of environments arrive as user."""
    eval_tasks: int | None = Field(default=None, ge=0)
    """Held-out tasks of the environment on which success is measured before and after; 0: not at all; null: 64, or 0
    with `sft.data`."""
    output_dir: str = "saved_models/sft_adapters"
    """A link to the adapters of the latest finished run; see `training.output_dir`."""

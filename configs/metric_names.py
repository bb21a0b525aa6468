"""The name of every metric. Code that records or reads a number takes its name from here.

The record and wandb hold these strings, so a name never changes: earlier runs would lose it. Only metrics that
others name are missing here: those of TRL (`TRL`) and of users' own code.

By convention the module is imported as `metric`: `metric.KL_MEAN`, `metric.COMPONENT_RAW("task")`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

MEANINGS: Final[dict[str, str]] = {}
"""The meaning of each metric, by name, or by the prefix of its family."""


@dataclass(frozen=True)
class Family:
    """Metrics of one meaning that differ in the last part of their name, such as the component of the reward."""

    prefix: str

    def __call__(self, part: str) -> str:
        return self.prefix + part

    def __contains__(self, name: str) -> bool:
        return name.startswith(self.prefix)

    def part(self, name: str) -> str:
        return name.removeprefix(self.prefix)

    @property
    def mapping(self) -> str:
        """The name of the whole family as one mapping, which the record flattens."""
        return self.prefix.removesuffix("/")

    @property
    def every(self) -> str:
        return f"{self.prefix}*"


def _metric(name: str, meaning: str) -> str:
    MEANINGS[name] = meaning
    return name


def _family(prefix: str, meaning: str) -> Family:
    MEANINGS[prefix] = meaning
    return Family(prefix)


def meaning(name: str) -> str:
    """Describe a metric in a few words. Empty for a metric of other libraries."""
    families = (said for prefix, said in MEANINGS.items() if prefix.endswith("/") and name.startswith(prefix))
    return MEANINGS.get(name) or next(families, "")


# The reward of a step's rollouts.
REWARD_MEAN: Final = _metric("rewards/total/mean", "reward of a rollout, mean")
REWARD_STD: Final = _metric("rewards/total/std", "reward of a rollout, standard deviation")
REWARD_NONFINITE: Final = _metric("rewards/nonfinite", "raw values that were NaN or infinite and are left out")
ADVANTAGE_STD: Final = _metric("advantage/std", "standard deviation of the rollouts' advantages")
TEACHER_KL: Final = _metric("distillation/reverse_kl", "reverse KL to the teacher, nats per token of the agent")
PENALTIES: Final = _metric("penalties/per_trajectory", "penalties of a rollout, mean")

# Each component of it: over the steps where it is defined, and summed over a rollout.
COMPONENT_RAW: Final = _family("rewards/raw/", "raw value of a step, mean")
COMPONENT_RAW_STD: Final = _family("rewards/raw_std/", "raw value of a step, standard deviation")
COMPONENT_NORMALIZED: Final = _family("rewards/normalized/", "normalised value of a step, mean")
COMPONENT_NORMALIZED_STD: Final = _family("rewards/normalized_std/", "normalised value of a step, standard deviation")
COMPONENT_WEIGHT: Final = _family("rewards/weight/", "weight of the component")
COMPONENT_CONTRIBUTION: Final = _family("rewards/contribution/", "weight times normalised value of a step, mean")
COMPONENT_RAW_SUM: Final = _family("rewards/raw_per_trajectory/", "raw values of a rollout summed, mean")
COMPONENT_NORMALIZED_SUM: Final = _family(
    "rewards/normalized_per_trajectory/", "normalised values of a rollout summed, mean"
)
COMPONENT_SUM: Final = _family("rewards/per_trajectory/", "contribution of the component to a rollout's reward, mean")
COMPONENT_RUNNING_MEAN: Final = _family("rewards/running_mean/", "mean that raw values were normalised by")
COMPONENT_RUNNING_STD: Final = _family("rewards/running_std/", "standard deviation that raw values were normalised by")
COMPONENT_ADVANTAGE_SHARE: Final = _family(
    "rewards/advantage_share/", "share of the component in the variance of returns within groups; all add up to 1"
)

CURIOSITY_REPEAT_RATE: Final = _metric(
    "curiosity/repeat_rate", "share of transitions that equal another one in the batch"
)
CURIOSITY_CACHE_HIT_RATE: Final = _metric(
    "curiosity/cache_hit_rate", "share of transitions in the cache from an earlier batch"
)
CURIOSITY_VERSION: Final = _metric("curiosity/version", "number of training updates of the dynamics model")
CURIOSITY_DYNAMICS_LOSS: Final = _metric("curiosity/dynamics_loss", "loss of the dynamics model")

ACTION_SHARE: Final = _family("behavior/action_distribution/", "share of the action among all steps")

# What the rollouts were like.
SUCCESS_TRAIN: Final = _metric("success/train", "share of the step's rollouts that solved their task")
SUCCESS_GREEDY: Final = _metric("success/eval_greedy", "share of held-out tasks solved at temperature 0")
SUCCESS_SAMPLED: Final = _metric("success/eval_sampled", "share of held-out tasks solved at temperature 1")
SUCCESS_LOW: Final = _metric("success/eval_low", "success on held-out tasks, lower end of its 95 % interval")
SUCCESS_HIGH: Final = _metric("success/eval_high", "success on held-out tasks, upper end of its 95 % interval")
REWARD_GREEDY: Final = _metric("held_out/reward_greedy", "graded reward of held-out tasks at temperature 0, mean")
REWARD_SAMPLED: Final = _metric("held_out/reward_sampled", "graded reward of held-out tasks at temperature 1, mean")
ENVIRONMENT_FAILED: Final = _metric("environment/failed", "share of rollouts that failed in their environment")
TURNS: Final = _metric("turns/mean", "turns of a rollout, mean")
TOKENS_AGENT: Final = _metric("tokens/agent", "tokens that the agent wrote in the step")
TOKENS_STEP: Final = _metric("tokens/step", "tokens of the step's rollouts, prompts and observations included")
TOKENS_PER_ROLLOUT: Final = _metric("tokens/per_trajectory", "tokens of a rollout, mean")
TOKENS_TOTAL: Final = _metric("tokens/total", "tokens since the run began")
FILTERING_RATE: Final = _metric("grpo/filtering_rate", "share of rollouts in groups without signal")
REPLAY_SHARE: Final = _metric("grpo/replay_share", "share of the batch that was replayed from earlier steps")
EFFECTIVE_BATCH: Final = _metric("grpo/effective_batch", "share of the batch that carries a gradient")
DRAWN_PASS_RATE: Final = _metric(
    "data/pass_rate", "expected pass rate of the drawn prompts before their rollouts, mean"
)
PROMPTS_KNOWN: Final = _metric("data/known", "share of prompts whose pass rate has evidence")

# Rollouts that are made on servers.
STALENESS: Final = _metric("rollout/staleness", "optimiser steps between sampling and learning, mean")
ROLLOUTS_DROPPED: Final = _metric("rollout/dropped", "rollouts that were too old to learn from")
ROLLOUTS_WAIT: Final = _metric("rollout/wait", "seconds that rollouts waited for the trainer")
TRAINER_IDLE: Final = _metric(
    "trainer/idle", "seconds that the trainer waited for rollouts and for servers to load a version"
)
LOGPROB_MISMATCH: Final = _metric("rollout/logprob_mismatch", "difference of server and trainer log-probs, nats, mean")
LOGPROB_MISMATCH_P99: Final = _metric("rollout/logprob_mismatch_p99", "the same, 99th percentile")
LOGPROB_MISMATCH_MAX: Final = _metric("rollout/logprob_mismatch_max", "the same, largest")

# The sampler against the trainer, on the first pass over a step's rollouts.
SAMPLER_KL: Final = _metric("sampler/kl", "KL(sampler ‖ trainer) of one policy, nats per token")
SAMPLER_CLIPPED: Final = _metric("sampler/clipped", "share of tokens outside the clip range before any update")
SAMPLER_RATIO: Final = _metric("sampler/largest_ratio", "largest |log ratio| of a rollout before any update, nats")

# The update.
LOSS: Final = _metric("train/loss", "the minimised loss")
RL_LOSS: Final = _metric("train/rl_loss", "the loss without its KL term")
GRAD_NORM: Final = _metric("train/grad_norm", "norm of the gradient before clipping")
CLIPPED_GRAD_NORM: Final = _metric("train/grad_norm_clipped", "norm of the gradient after clipping")
LEARNING_RATE: Final = _metric("train/learning_rate", "learning rate of the step")
MOVEMENT: Final = _metric(
    "train/movement", "mean change of a weight since the start, as a share of the sum of the learning rates"
)
ENTROPY: Final = _metric("train/entropy", "entropy of the policy at an agent's token, nats, mean")
CLIP_FRACTION: Final = _metric("train/clip_fraction", "share of agent tokens whose ratio was clipped")
TOKEN_ACCURACY: Final = _metric(
    "train/token_accuracy", "share of the demonstrations' tokens that the policy ranks first"
)

# How far the policy is from its reference, in nats per agent token.
KL_MEAN: Final = _metric("kl/mean", "KL to the reference; while serving the mean of the last updates, nats per token")
KL_REVERSE: Final = _metric("kl/reverse", "KL(policy ‖ policy that answered) after the update, nats per token")
KL_FORWARD: Final = _metric("kl/forward", "KL(policy that answered ‖ policy) after the update, nats per token")
KL_BEFORE: Final = _metric("kl/before", "KL(policy ‖ policy that answered) before the update, nats per token")
KL_START: Final = _metric("kl/start", "KL to the policy that the run started from, nats per token")
KL_UNCHANGED: Final = _metric(
    "kl/unchanged", "KL of the loss's log-probs to those of the rollouts before the first update, nats per token"
)
KL_TARGET: Final = _metric("kl/target", "target of the KL, which beta adapts to")
KL_TOLERANCE: Final = _metric("kl/tolerance", "distance from the target at which beta changes")
BETA: Final = _metric("kl/beta", "weight of the KL in the loss")
ENTROPY_WEIGHT: Final = _metric("train/entropy_weight", "weight of the entropy bonus in the loss")

# Seconds and memory.
Phase = Literal["generate", "environment", "reward", "logprobs", "backward"]
"""The phases of a training step."""
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
PHASE_SECONDS: Final = _family("time/", "seconds of this phase of a step")
STEP_SECONDS: Final = _metric("time/step", "seconds of an optimiser step, its rollouts included")
RECORD_SECONDS: Final = _metric("time/record", "seconds that recording took in the training thread")
EVALUATE_SECONDS: Final = _metric("time/evaluate", "seconds of an evaluation on held-out tasks")
UPDATE_SECONDS: Final = _metric("time/update", "seconds of an update while serving")
MEMORY_RSS: Final = _metric("memory/rss_mib", "main memory of the training process, MiB")
MEMORY_GPU: Final = _metric("memory/gpu_mib", "GPU memory of the training process at its peak, MiB")

# Serving: one value a request or an update; shown as rates and means over the last of them.
ONLINE_SUCCESS: Final = _metric("online/success", "whether the answer was right, if known")
ONLINE_SUCCESS_INITIAL: Final = _metric("online/success_initial", "whether the first rollout was right")
GATE_RATE: Final = _metric("online/gate_rate", "whether the vote was confident enough to learn from")
FLIP_RATE: Final = _metric("online/flip_rate", "whether the vote overturned the first answer")
CONFIDENCE: Final = _metric("online/confidence", "share of the votes for the label")
NEIGHBOURS: Final = _metric("online/neighbours", "earlier experiences that also voted")
LATENCY: Final = _metric("online/latency_s", "seconds from request to answer")
SERVING_VERSION: Final = _metric("online/serving_version", "version of the policy that answers")
SNAPSHOT_VERSION: Final = _metric("online/snapshot_version", "latest published version")
PUBLISHING_HELD: Final = _metric("online/publishing_held", "whether publishing is held back")
QUEUE_DEPTH: Final = _metric("online/queue_depth", "waiting updates")
TASKS_LOST: Final = _metric("online/tasks_lost", "updates lost to disk failures of the queue")
TASKS_DROPPED: Final = _metric("online/tasks_dropped", "updates dropped because the queue was full")
REQUEST: Final = _metric("online/request", "number of the request: the axis of the metrics of serving")

# Learning while serving.
UPDATES: Final = _metric("online/updates", "updates so far")
REJECTED: Final = _metric("online/rejected", "whether the update was reverted")
UPDATE_WEIGHT: Final = _metric("online/update_weight", "weight of the update, below 1 for one of many similar ones")
UPDATE_NORM: Final = _metric("online/step_norm", "norm of the change that the update made to the weights")
BASELINE: Final = _metric("online/baseline", "running mean of returns, the baseline of advantages")
RETURN_MEAN: Final = _metric("online/mean_return", "return of the update's rollouts, mean")
ONLINE_BETA: Final = _metric("online/current_beta", "weight of the KL in the loss")
ONLINE_KL: Final = _metric("online/mean_kl", "mean of the last updates' KL, nats per token")
VALIDATION_LIVE: Final = _metric("online/validation_live", "success of the newest weights on the validation tasks")
VALIDATION_EMA: Final = _metric("online/validation_ema", "success of the smoothed weights on the validation tasks")
VALIDATION_DELTA: Final = _metric("online/delta_validation", "success of the newest weights minus that of the smoothed")
CANARY_LABEL_ACCURACY: Final = _metric("online/canary_label_accuracy", "share of right labels on known tasks")
CANARY_FLIP_RATE: Final = _metric("online/canary_flip_rate", "share of these labels that changed since last time")

TRL: Final = _family("trl/", "TRL's own metric of this name")

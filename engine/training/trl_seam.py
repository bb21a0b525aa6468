"""Everything training uses of TRL's internals: `GRPOTrainer` methods that `GRPOEnvTrainer` replaces, attributes, logs.

| hook | for |
|---|---|
| `_generate_and_score_completions` | rollouts of environments instead of TRL's completions |
| `_prepare_inputs` | micro-batches that keep the order of their rows |
| `_get_per_token_logps_and_entropies` | log-probs of the packed forward pass |
| `compute_loss`, `training_step`, `get_batch_samples` | phases, checks, and the rollouts of later steps |
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import trl
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from ..rollouts.rollout import Rollout
from . import TrainingError
from .losses.terms import Clipping
from .resumable import Hooks, ResumableTrainer, StatePart, check_hooks

TRIED = "1.14 to 1.16"
"""Versions of TRL that `make test-versions` trains with."""
METHODS: Hooks = {
    "_generate_and_score_completions": (("inputs",), ()),
    "_prepare_inputs": (("generation_batch",), ()),
    "_get_per_token_logps_and_entropies": (
        ("model", "input_ids", "attention_mask", "logits_to_keep"),
        ("batch_size", "compute_entropy"),
    ),
    "compute_loss": (("model", "inputs", "return_outputs", "num_items_in_batch"), ()),
    "training_step": (("model", "inputs", "num_items_in_batch"), ()),
    "get_batch_samples": (("epoch_iterator", "num_batches", "device"), ()),
}
ATTRIBUTES = (
    *("_buffered_inputs", "_entropy_bonus_enabled", "_last_world_entropy", "_logs", "_metrics", "_step", "_tokenizer"),
    *("aux_loss_enabled", "entropy_coef", "epsilon_high", "epsilon_low", "importance_sampling_level", "loss_type"),
    *("num_iterations", "temperature", "use_adaptive_entropy"),
)


def check_methods() -> None:
    """Raise TrainingError unless every method of `METHODS` exists and takes its arguments."""
    check_hooks(GRPOTrainer, METHODS, _message)


def check_attributes(trainer: GRPOTrainer) -> None:
    """Raise TrainingError unless a constructed trainer has every attribute of `ATTRIBUTES`."""
    for name in ATTRIBUTES:
        if not hasattr(trainer, name):
            raise TrainingError(_message(name))


def _message(hook: str) -> str:
    return (
        f"TRL {trl.__version__} has no GRPOTrainer.{hook}, which training needs; install a tested one, {TRIED}: pip "
        "install 'trl>=1.14,<1.17'"
    )


def environment_reward(prompts: Sequence[object], **_: object) -> list[float]:
    """Stand in for TRL's reward function. Rewards come with the rollouts."""
    raise RuntimeError("rewards come with the environment's rollouts; this is never called")


def indices(rows: int, args: GRPOConfig) -> list[int]:
    """Return the indices of all rows, repeated until they fill a batch: TRL drops rows that fill none."""
    prompts = args.generation_batch_size // args.num_generations  # type: ignore[operator]
    return list(range(rows)) * -(-prompts // rows)


def adaptive_entropy(trainer: GRPOTrainer) -> list[StatePart]:
    """Return the checkpoint part that stores TRL's adaptive entropy bonus, if the trainer uses it."""

    def save(folder: Path) -> None:
        state = {name: getattr(trainer, name) for name in ("entropy_coef", "_last_world_entropy")}
        (folder / "entropy.json").write_text(json.dumps(state))

    def load(folder: Path) -> None:
        for name, value in json.loads((folder / "entropy.json").read_text()).items():
            setattr(trainer, name, value)

    return [StatePart(save, load, everywhere=True)] if trainer.use_adaptive_entropy else []


def clipping(trainer: GRPOTrainer, *, own_loss: bool, kl_estimator: str) -> Clipping:
    """Return the configuration of TRL's loss, with an empty type if it has terms other than policy gradient and KL.

    own_loss: it is replaced by a loss of `losses`.
    """
    args: Any = trainer.args
    others = (args.delta, args.off_policy_mask_threshold, args.top_entropy_quantile < 1 or None)
    plain = not trainer._entropy_bonus_enabled and not trainer.aux_loss_enabled and all(o is None for o in others)
    return Clipping(
        trainer.loss_type if plain and not own_loss else "",
        trainer.epsilon_low,
        trainer.epsilon_high,
        trainer.importance_sampling_level == "sequence",
        args.use_bias_correction_kl or own_loss,
        kl_estimator,
    )


def log_rollouts(trainer: ResumableTrainer, rollouts: Sequence[Rollout], mode: str) -> None:
    """Log what TRL logs when it generates. mode: `train` or `eval`."""
    metrics = trainer._metrics[mode]
    if mode == "train":
        trainer.state.num_input_tokens_seen += sum(map(len, rollouts))
    metrics["num_tokens"] = [float(trainer.state.num_input_tokens_seen)]
    for name, value in _completion_metrics(rollouts, trainer.num_generations).items():
        metrics[name].append(value)
    table: Any = trainer._logs
    for rollout in rollouts:
        if rollout.trajectory is not None:
            table["prompt"].append(rollout.trajectory.prompt)
            table["completion"].append("\n".join(s.text for s in rollout.trajectory.steps))
            table["rewards"]["total"].append(rollout.total_reward)
            table["advantages"].append(rollout.advantage)


def _completion_metrics(rollouts: Sequence[Rollout], group_size: int) -> dict[str, float]:
    """Return, by TRL's names, the metrics that TRL computes when it generates: reward, its spread, lengths in agent
    tokens, the share of rollouts cut by a limit, and the lengths of the others (0 if there are none)."""
    rewards = np.array([r.total_reward for r in rollouts], dtype=np.float64)
    lengths = np.array([r.agent_tokens for r in rollouts], dtype=np.float64)
    spread = rewards.reshape(-1, group_size).std(1) if len(rewards) % group_size == 0 else rewards
    metrics = {
        "reward": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "frac_reward_zero_std": float((spread < 1e-8).mean()),
        "environment_reward": float(np.mean([r.final_reward for r in rollouts])),
        "completions/mean_length": float(lengths.mean()),
        "completions/min_length": float(lengths.min()),
        "completions/max_length": float(lengths.max()),
    }
    cuts = [r.trajectory.cut for r in rollouts if r.trajectory is not None]
    if len(cuts) == len(rollouts):
        ended = lengths[~np.array(cuts)] if not all(cuts) else np.zeros(1)
        metrics |= {
            "completions/clipped_ratio": float(np.mean(cuts)),
            "completions/mean_terminated_length": float(ended.mean()),
            "completions/min_terminated_length": float(ended.min()),
            "completions/max_terminated_length": float(ended.max()),
        }
    return metrics

"""One-line changes of TRL's `GRPOTrainer`, and unmodified configurations.

Each change names the settings under which its line runs. The catalogue was written before the checks that it measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ACCUMULATED = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}
REUSED = {"num_iterations": 2, "learning_rate": 0.03}
"""Use each batch twice, with an update in between that moves ratios out of the clip range."""


@dataclass(frozen=True)
class Mutation:
    """A replacement in the trainer's source. old: text that occurs exactly once. settings: of `GRPOConfig`, and
    `tool_tokens` (a rollout function that marks some tokens as tool output), `unscored` (some completions have no
    reward) and `dtype` (of the weights)."""

    name: str
    old: str
    new: str
    settings: Mapping[str, Any] = field(default_factory=dict)


SUM = "rewards = (rewards_per_func * self.reward_weights.to(device).unsqueeze(0)).nansum(dim=1)"
MEAN = "mean_grouped_rewards = torch.nanmean(rewards.view(-1, num_generations), dim=1)"
CENTRE = "advantages = rewards - mean_grouped_rewards\n"
STD = "std_rewards = nanstd(rewards.view(-1, num_generations), dim=1)"
TRUNCATED = "completion_mask = completion_mask * (~is_truncated).unsqueeze(1).int()"
CLIP = "coef_2 = torch.clamp(coef_1, 1 - self.epsilon_low, 1 + self.epsilon_high)"
SURROGATE = "per_token_loss = -torch.min(per_token_loss1, per_token_loss2)"
K3 = "torch.exp(ref_per_token_logps - per_token_logps) - (ref_per_token_logps - per_token_logps) - 1"
WINDOW = "normalizer = normalizer * self.current_gradient_accumulation_steps / self.args.steps_per_generation"
BY_SEQUENCE = "loss = ((per_token_loss * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()"
BY_TOKEN = "loss = (per_token_loss * mask).sum() / mask.sum().clamp(min=1.0)\n"
DIVIDED = 'policy_loss = loss.detach()\n            loss = loss / normalizer\n        elif self.loss_type == "bnpo"'
SAMPLER = "data_source=dataset,\n            mini_repeat_count=self.num_generations,"
EVERY = "generate_every = self.args.steps_per_generation * self.num_iterations\n            if self._step"
LOSS_MASK = 'mask = completion_mask if "tool_mask" not in inputs else completion_mask * inputs["tool_mask"]'

MUTATIONS: Mapping[str, tuple[Mutation, ...]] = {
    "advantage": (
        Mutation("the sign is reversed", CENTRE, "advantages = mean_grouped_rewards - rewards\n"),
        Mutation("the mean of the group is not subtracted", CENTRE, "advantages = rewards.clone()\n"),
        Mutation("weights of rewards are ignored", SUM, "rewards = rewards_per_func.nansum(dim=1)"),
        Mutation("rewards are averaged, not summed", SUM, SUM.replace("nansum", "nanmean")),
        Mutation(
            "negative advantages become positive",
            "advantages = torch.nan_to_num(advantages, nan=0.0)",
            "advantages = torch.nan_to_num(advantages, nan=0.0).abs()",
        ),
        Mutation(
            "an unscorable completion counts as 0",
            "rewards[unscorable_mask] = torch.nan\n            mean_grouped",
            "rewards[unscorable_mask] = 0.0\n            mean_grouped",
            {"unscored": True},
        ),
        Mutation(
            "the batch gets advantages in reverse order",
            "advantages = advantages[process_slice]",
            "advantages = advantages[process_slice].flip(0)",
        ),
        Mutation(
            "the advantage enters the loss without its sign",
            "advantages = advantages.unsqueeze(1)",
            "advantages = advantages.unsqueeze(1).abs()",
        ),
    ),
    "scaling": (
        Mutation(
            "the deviation has a large floor",
            "advantages = advantages / (std_rewards + 1e-4)",
            "advantages = advantages / (std_rewards + 0.1)",
        ),
        Mutation(
            "multiplied by the deviation",
            "advantages = advantages / (std_rewards + 1e-4)",
            "advantages = advantages * (std_rewards + 1e-4)",
        ),
        Mutation("divided by the variance", STD, f"{STD} ** 2"),
        Mutation(
            "scaling happens only where it is off",
            'if self.scale_rewards != "none":',
            'if self.scale_rewards == "none":',
        ),
        Mutation(
            "the batch's deviation is that of the means",
            "std_rewards = nanstd(rewards).expand_as(rewards)\n",
            "std_rewards = nanstd(mean_grouped_rewards).expand_as(rewards)\n",
            {"scale_rewards": "batch"},
        ),
        Mutation(
            "rewards are centred, not normalised, before the sum",
            "reward_k = (grouped - mean_k) / (std_k + 1e-4)",
            "reward_k = grouped - mean_k",
            {"multi_objective_aggregation": "normalize_then_sum"},
        ),
        Mutation(
            "accumulated steps are not counted",
            WINDOW,
            WINDOW.replace("self.current_gradient_accumulation_steps", "1"),
            ACCUMULATED,
        ),
        Mutation(
            "accumulated losses are not divided",
            DIVIDED,
            DIVIDED.replace("loss / normalizer", "loss * 1"),
            {"loss_type": "grpo", **ACCUMULATED},
        ),
        Mutation(
            "dr_grpo divides by the longest completion",
            "(per_token_loss.size(0) * self.max_completion_length)",
            "(per_token_loss.size(0) * mask.sum(-1).max())",
            {"loss_type": "dr_grpo", "mask_truncated_completions": True},
        ),
    ),
    "mask": (
        Mutation(
            "only truncated completions are kept",
            TRUNCATED,
            TRUNCATED.replace("~", ""),
            {"mask_truncated_completions": True},
        ),
        Mutation(
            "truncated completions are not masked",
            TRUNCATED,
            "completion_mask = completion_mask * 1",
            {"mask_truncated_completions": True},
        ),
        Mutation("tool tokens are trained on", LOSS_MASK, "mask = completion_mask", {"tool_tokens": True}),
        Mutation(
            "only tool tokens are trained on",
            LOSS_MASK,
            LOSS_MASK.replace("* inputs", "* 1 - inputs"),
            {"tool_tokens": True},
        ),
        Mutation(
            "padding is trained on",
            'completion_mask, padding_value=0, padding_side="right"',
            'completion_mask, padding_value=1, padding_side="right"',
        ),
        Mutation(
            "padding counts in the mean of a sequence",
            BY_SEQUENCE,
            BY_SEQUENCE.replace("* mask).sum", "* 1).sum", 1),
            {"loss_type": "grpo"},
        ),
        Mutation(
            "padding counts in the mean of a batch", BY_TOKEN, "loss = per_token_loss.mean()\n", {"loss_type": "bnpo"}
        ),
        Mutation(
            "tool tokens count in the normaliser",
            "loss_mask = completion_mask if tool_mask is None else completion_mask * tool_mask",
            "loss_mask = completion_mask",
            {"tool_tokens": True},
        ),
        Mutation(
            "padding counts in the normaliser",
            "num_items_in_batch = self.accelerator.gather(loss_mask.sum()).sum()",
            "num_items_in_batch = self.accelerator.gather(torch.ones_like(loss_mask).sum()).sum()",
        ),
        Mutation(
            "low entropy counts as high",
            "entropy_mask = masked_entropies >= entropy_threshold",
            "entropy_mask = masked_entropies < entropy_threshold",
            {"top_entropy_quantile": 0.3},
        ),
    ),
    "loss": (
        Mutation("the larger surrogate is taken", SURROGATE, SURROGATE.replace("min", "max"), REUSED),
        Mutation("the policy term has the wrong sign", SURROGATE, SURROGATE.replace("-torch", "torch")),
        Mutation(
            "the upper bound is the lower one",
            CLIP,
            CLIP.replace("epsilon_high", "epsilon_low"),
            {**REUSED, "epsilon": 0.05, "epsilon_high": 0.3},
        ),
        Mutation("the lower bound is epsilon itself", CLIP, CLIP.replace("1 - ", ""), REUSED),
        Mutation(
            "the ratio is inverted",
            "log_ratio = per_token_logps - old_per_token_logps",
            "log_ratio = old_per_token_logps - per_token_logps",
        ),
        Mutation(
            "no gradient flows",
            "old_per_token_logps = per_token_logps.detach() if old_per_token_logps is None",
            "old_per_token_logps = per_token_logps if old_per_token_logps is None",
        ),
        Mutation(
            "the ratio of a sequence is not a mean",
            "log_importance_weights = (log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)",
            "log_importance_weights = (log_ratio * mask).sum(-1)",
            {"importance_sampling_level": "sequence", "loss_type": "grpo", **REUSED},
        ),
        Mutation(
            "the KL estimator has its arguments reversed",
            K3,
            "torch.exp(per_token_logps - ref_per_token_logps) - (per_token_logps - ref_per_token_logps) - 1",
            {"beta": 0.1, "learning_rate": 0.01},
        ),
        Mutation(
            "the KL term has the wrong sign",
            "per_token_loss + self.beta * per_token_kl",
            "per_token_loss - self.beta * per_token_kl",
            {"beta": 0.1, "learning_rate": 0.01},
        ),
        Mutation(
            "the KL term has no weight",
            "per_token_loss + self.beta * per_token_kl",
            "per_token_loss + per_token_kl",
            {"beta": 0.1, "learning_rate": 0.01},
        ),
        Mutation(
            "the reference is the policy itself",
            "self.ref_model,\n                        prompt_completion_ids",
            "self.model,\n                        prompt_completion_ids",
            {"beta": 0.1, "learning_rate": 0.01},
        ),
        Mutation(
            "old log-probs are not kept for the second update",
            "if self.args.gradient_accumulation_steps % generate_every != 0 or (",
            "if self.args.gradient_accumulation_steps % generate_every == 0 or (",
            REUSED,
        ),
        Mutation(
            "cispo's ratio has a gradient",
            "torch.clamp(coef_1, max=self.epsilon_high).detach()",
            "torch.clamp(coef_1, max=self.epsilon_high)",
            {"loss_type": "cispo", "epsilon_high": 5.0},
        ),
        Mutation(
            "sapo's temperatures are exchanged",
            "temperatures = torch.where(advantages > 0",
            "temperatures = torch.where(advantages < 0",
            {"loss_type": "sapo", **REUSED},
        ),
        Mutation(
            "clipping counts at the wrong sign of the advantage",
            "is_low_clipped = (coef_1 < 1 - self.epsilon_low) & (advantages < 0)",
            "is_low_clipped = (coef_1 < 1 - self.epsilon_low) & (advantages > 0)",
            REUSED,
        ),
    ),
    "grouping": (
        Mutation(
            "means are over other groups",
            MEAN,
            "mean_grouped_rewards = torch.nanmean(rewards.view(num_generations, -1), dim=0)",
        ),
        Mutation(
            "means are repeated in another order",
            "mean_grouped_rewards.repeat_interleave(num_generations, dim=0)",
            "mean_grouped_rewards.repeat(num_generations)",
        ),
        Mutation(
            "deviations are repeated in another order",
            "std_rewards.repeat_interleave(num_generations, dim=0)",
            "std_rewards.repeat(num_generations)",
        ),
        Mutation(
            "one group is the whole batch",
            MEAN,
            "mean_grouped_rewards = torch.nanmean(rewards).repeat(len(rewards) // num_generations)",
        ),
        Mutation("a group has several prompts", SAMPLER, SAMPLER.replace("num_generations,", "num_generations // 2,")),
        Mutation(
            "each reward is compared over groups",
            "mean_k = torch.nanmean(grouped, dim=1, keepdim=True)",
            "mean_k = torch.nanmean(grouped, dim=0, keepdim=True)",
            {"multi_objective_aggregation": "normalize_then_sum"},
        ),
        Mutation(
            "only the first part of a batch is used",
            "self._buffered_inputs[self._step % self.args.steps_per_generation]",
            "self._buffered_inputs[0]",
            ACCUMULATED,
        ),
        Mutation(
            "a batch is generated anew for each update", EVERY, EVERY.replace(" * self.num_iterations", ""), REUSED
        ),
    ),
}

CONFIGURATIONS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "grpo, KL, accumulated": {"loss_type": "grpo", "beta": 0.05, "learning_rate": 0.01, **ACCUMULATED},
    "bnpo, scaled by batch": {"loss_type": "bnpo", "scale_rewards": "batch", "unscored": True},
    "dr_grpo, not scaled, used twice": {"loss_type": "dr_grpo", "scale_rewards": "none", **REUSED},
    "sequence ratios, used three times": {
        "loss_type": "grpo", "importance_sampling_level": "sequence", **REUSED, "num_iterations": 3, "epsilon": 0.01,
    },
    "truncated completions masked": {"mask_truncated_completions": True, "beta": 0.02, "learning_rate": 0.01},
    "normalised, then summed": {"multi_objective_aggregation": "normalize_then_sum", "reward_weights": [2.0, -0.5]},
    "cispo over stale parts": {
        "loss_type": "cispo", "epsilon_high": 5.0, "steps_per_generation": 4, **ACCUMULATED, "learning_rate": 0.03,
    },
    "sapo, high entropy alone": {"loss_type": "sapo", "top_entropy_quantile": 0.4, **REUSED},
    "tools, corrected KL, two-sided clipping": {
        "tool_tokens": True, "beta": 0.05, "use_bias_correction_kl": True, "delta": 1.5, "epsilon": 0.05, **REUSED,
    },
    "in bfloat16": {"dtype": "bfloat16", "loss_type": "bnpo", "beta": 0.05, **REUSED},
}  # fmt: skip
"""Unmodified trainings."""

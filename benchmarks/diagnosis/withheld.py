"""Faults from issue trackers, made after all detectors and measured before any was changed for them. Each names the
thread that reports it. `causes` were written before the first evaluation. Two name a detector that does not exist."""

from __future__ import annotations

from .recipes import LORA, Recipe, env

WITHHELD = (
    Recipe(
        "zeroed",
        "verdicts",
        "every reward is 0 (PrimeIntellect-ai/verifiers#186)",
        ("constant_reward", "rejected_answers"),
        env(grader="zeroed"),
    ),
    Recipe(
        "unparsable",
        "verdicts",
        "an answer that cannot be parsed is right (huggingface/open-r1#293)",
        ("accepted_without_answer", "reward_hack"),
        env(grader="unparsable"),
    ),
    Recipe(
        "distance",
        "payoff",
        "the distance from a length is paid, not its closeness (huggingface/trl#2771)",
        ("length_reward", "reward_hack"),
        env(grader="distance"),
    ),
    Recipe(
        "steps_paid",
        "payoff",
        "markers of steps are paid three times as well as answers (huggingface/open-r1#144)",
        ("reward_hack", "length_reward", "repetition"),
        env(grader="steps"),
    ),
    Recipe(
        "abstains",
        "payoff",
        "a wrong answer costs as much as a right one earns (modelscope/ms-swift#3925)",
        ("reward_hack", "unanswered", "accepted_without_answer"),
        env(grader="abstains"),
    ),
    Recipe(
        "shifted_mask",
        "masks",
        "log-probs are one token late for the mask (PrimeIntellect-ai/prime-rl#1525)",
        ("trained_tokens", "untrained_tokens", "surprising_tokens"),
        patch="shifted_mask",
    ),
    Recipe(
        "last_label",
        "masks",
        "the last label is the first token of the next row (verl-project/verl#6475)",
        ("surprising_tokens", "trained_tokens"),
        patch="last_label",
    ),
    Recipe(
        "end_untrained",
        "masks",
        "the end token is not in the loss (rasbt/reasoning-from-scratch#185)",
        ("untrained_tokens",),
        patch="end_untrained",
    ),
    Recipe(
        "positions",
        "prompts",
        "the trainer reads the prompt at other positions (verl-project/verl#4243)",
        ("surprising_tokens",),
        patch="positions",
    ),
    Recipe(
        "left_cut",
        "prompts",
        "prompts are cut on the left (verl-project/verl#506)",
        ("noisy_labels", "prompt_gap", "prompt_cut"),
        patch="left_cut",
    ),
    Recipe(
        "placeholder",
        "prompts",
        "placeholders in the place of questions (rllm-org/rllm#275)",
        ("noisy_labels", "prompt_gap", "few_tasks"),
        env(labels="placeholder"),
    ),
    Recipe(
        "filtered",
        "data",
        "a filter keeps the tasks of two keys alone (verl-project/verl#6239)",
        ("few_tasks", "held_out_gap"),
        env(labels="filtered"),
    ),
    Recipe(
        "two_rollouts",
        "data",
        "groups of two (jsboige/CoursIA#10603)",
        ("groups_without_variance",),
        {"training.num_generations": 2},
    ),
    Recipe(
        "entropy_bonus",
        "coefficients",
        "a bonus on entropy that is too large (verl-project/verl#781)",
        ("entropy_rise",),
        {"training.trl.entropy_coef": 0.3},
    ),
    Recipe(
        "lora_slow",
        "coefficients",
        "the learning rate of all weights for adapters (huggingface/trl#2872)",
        ("no_movement",),
        {**LORA, "training.learning_rate": 5e-6},
    ),
    Recipe(
        "forgetful",
        "restarts",
        "every third step starts from the first weights (huggingface/trl#3179)",
        ("weights_reset",),
        patch="forgetful",
    ),
    Recipe(
        "across_prompts",
        "restarts",
        "groups are formed across prompts (dllm-reasoning/d1#19)",
        ("mixed_groups", "advantage_order"),
        patch="across_prompts",
    ),
    Recipe(
        "lagging",
        "asynchrony",
        "rollouts of eight steps ago, scored as new ones (PrimeIntellect-ai/prime-rl#964)",
        ("sampler_mismatch", "surprising_tokens"),
        patch="lagging",
    ),
    Recipe(
        "zero_logprobs",
        "asynchrony",
        "missing log-probs of the sampler are 0 (vllm-project/vime#70)",
        ("sampler_mismatch", "surprising_tokens"),
        patch="zero_logprobs",
    ),
)

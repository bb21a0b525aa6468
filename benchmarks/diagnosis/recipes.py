"""The corpus as a table: healthy kinds of training, and faults with their family and split.

Thresholds of detectors are chosen on the families of `DEVELOPMENT` alone; those of `TEST` are only measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEVELOPMENT = ("grader", "grouping", "optimisation", "rollouts")
TEST = ("tokens", "versions", "collapse")
HEALTHY = "healthy"
UNSEEN = ("rewards", "updates", "sampling")
"""Made after the detectors, and measured before any detector was changed for them."""
LATER = ("labels", "inputs")
"""Made after `UNSEEN`, and also measured before detectors were made for them."""
WITHHELD = ("verdicts", "payoff", "masks", "prompts", "data", "coefficients", "restarts", "asynchrony")
"""From issue trackers: `withheld.py`. Made after those, and measured before a detector was changed for them."""
TRACKERS = ("credit", "environment", "engines", "context", "extraction", "schedule")
"""From issue trackers, too: `trackers.py`. Made after those, and measured before a detector was changed for them."""
FIELD = ("verification", "judging", "assembly", "adapters", "descent", "decoding", "episodes", "curriculum")
"""From issue trackers, too: `field.py`. Made after those, and measured before a detector was changed for them."""
REPORTS = ("tools", "reading", "norms", "precision", "synchronisation", "tokenising", "loading", "control", "batches")
"""From issue trackers, too: `reports.py`. Made after those, and measured before a detector was changed for them."""
THREADS = (
    "signals",
    "placement",
    "attention",
    "memory",
    "baselines",
    "texts",
    "ratios",
    "masking",
    "merging",
    "templates",
    "agency",
)
"""From issue trackers, too: `threads.py`. Made after those, and measured before a detector was changed for them."""
ISSUES = ("scores", "conversations", "caches", "transfer", "backward", "losses", "weighting", "sequences", "supply")
"""From issue trackers, too: `issues.py`. Made after those, and measured before a detector was changed for them."""
PRACTICE = (
    "marks",
    "answers",
    "likelihoods",
    "refits",
    "layers",
    "comparisons",
    "buffers",
    "endings",
    "casualties",
    "histories",
    "interruptions",
)
"""From issue trackers, too: `practice.py`. Made last, and measured before a detector was changed for them."""
SMALL_MODELS = ("smollm2", "healthy smollm2")
"""Trainings of SmolLM2-135M: `small_models.py`."""
FRESH = ("fresh",)
"""Made last, and measured before a detector was changed for them."""

STEPS = 24
SETTINGS: Mapping[str, object] = {
    "model.sft_adapters": "null",
    "model.lora": "null",
    "model.device": "cpu",
    "environment.config": "{}",
    "environment.train_tasks": 400,
    "environment.eval_tasks": 64,
    "rewards.w_curiosity": 0,
    "rewards.w_coherence": 0,
    "training.learning_rate": 0.002,
    "training.trl.lr_scheduler_type": "constant",
    "training.prompts_per_step": 8,
    "training.max_steps": STEPS,
    "training.max_turn_tokens": 14,
    "training.max_trajectory_tokens": 64,
    "training.eval_every": 8,
    "training.save_every": 0,
    "training.save_minutes": 0,
}
"""Settings of every training. A recipe overrides some."""


@dataclass(frozen=True)
class Recipe:
    """One kind of training. world: a class in `worlds.py`. settings: override `SETTINGS`. patch: a function in
    `patches.py`, which changes the engine in the training process. causes: detectors whose finding names the fault."""

    name: str
    family: str
    broken: str
    causes: tuple[str, ...] = ()
    settings: Mapping[str, object] | None = None
    world: str = "Notes"
    patch: str = ""

    @property
    def split(self) -> str:
        """The split: healthy, development, test, unseen, later, fresh, withheld, trackers, field, reports, threads,
        issues, practice or a family of small models."""
        tuned = {HEALTHY: (HEALTHY,), "test": TEST, "unseen": UNSEEN, "later": LATER, "fresh": FRESH}
        tracked = {"withheld": WITHHELD, "trackers": TRACKERS, "field": FIELD, "reports": REPORTS}
        latest = {"threads": THREADS, "issues": ISSUES, "practice": PRACTICE}
        groups = {**tuned, **tracked, **latest, **{name: (name,) for name in SMALL_MODELS}}
        return next((split for split, families in groups.items() if self.family in families), "development")


def env(**options: object) -> dict[str, object]:
    return {"environment.config": "{" + ", ".join(f"{k}: {v}" for k, v in options.items()) + "}"}


LORA: Mapping[str, object] = {"model.lora": "{r: 8, alpha: 16}", "training.learning_rate": 0.01}
TEMPLATE = Path(__file__).with_name("other_template.jinja")

KINDS = (
    Recipe("notes", HEALTHY, "all weights, one turn"),
    Recipe("boxes", HEALTHY, "two turns with a tool", world="Boxes"),
    Recipe("lora", HEALTHY, "adapters", settings=LORA),
    Recipe(
        "dr_grpo", HEALTHY, "Dr. GRPO", settings={"training.loss_type": "dr_grpo", "training.scale_advantages": "none"}
    ),
    Recipe("no_kl", HEALTHY, "no KL penalty", settings={"training.beta": 0}),
    Recipe("dapo", HEALTHY, "dynamic sampling", settings={"training.replay.mode": "dapo"}),
    Recipe("plain", HEALTHY, "no replay", settings={"training.replay.mode": "off"}),
    Recipe(
        "cosine",
        HEALTHY,
        "a learning rate that falls to 0",
        settings={"training.learning_rate": 0.003, "training.trl.lr_scheduler_type": "cosine"},
    ),
    Recipe(
        "two_updates",
        HEALTHY,
        "two updates for each batch",
        settings={"training.trl.num_iterations": 2, "training.learning_rate": 0.001},
    ),
    Recipe(
        "large_groups",
        HEALTHY,
        "4 x 16 rollouts",
        settings={
            "training.prompts_per_step": 4,
            "training.num_generations": 16,
            "training.learning_rate": 0.001,
        },
    ),
    Recipe(
        "shaped",
        HEALTHY,
        "curiosity and coherence on",
        world="Boxes",
        settings={"rewards.w_curiosity": 0.01, "rewards.w_coherence": 0.01},
    ),
    Recipe("turns", HEALTHY, "advantages by turn", world="Boxes", settings={"training.advantages": "turn"}),
)
FAULTS = (
    Recipe(
        "pays_form",
        "grader",
        "an answer without a number is right",
        ("accepted_without_answer", "reward_hack"),
        settings=env(grader="form"),
    ),
    Recipe("pays_length", "grader", "the reward is the length", ("length_reward",), settings=env(grader="length")),
    Recipe("noisy", "grader", "45 % of the verdicts are reversed", ("noisy_reward",), settings=env(grader="noisy")),
    Recipe("always_right", "grader", "every answer is right", ("constant_reward",), settings=env(grader="always")),
    Recipe("rejects_right", "grader", "right answers are wrong", ("rejected_answers",), settings=env(grader="rejects")),
    Recipe("leaked", "grader", "the prompt holds the answer", ("leaked_answer",), settings=env(leak="true")),
    Recipe(
        "echo_paid",
        "grader",
        "a copy of the prompt is right",
        ("accepted_without_answer", "reward_hack"),
        settings=env(grader="echo"),
    ),
    Recipe("groups_mixed", "grouping", "rewards of other rollouts", ("advantage_order",), patch="groups_mixed"),
    Recipe("sign", "grouping", "the sign of the advantage", ("advantage_order",), patch="sign"),
    Recipe("batch_of_one", "grouping", "groups of one", ("advantage_scale",), patch="batch_of_one"),
    Recipe(
        "kl_sign",
        "grouping",
        "the sign of the KL penalty",
        ("kl_sign", "kl_rise"),
        {"training.beta": 0.5},
        patch="kl_sign",
    ),
    Recipe("lr_high", "optimisation", "learning rate x 100", ("kl_rise",), {"training.learning_rate": 0.2}),
    Recipe("lr_low", "optimisation", "learning rate / 1,000", ("no_movement",), {"training.learning_rate": 2e-6}),
    Recipe("kl_weight", "optimisation", "KL weight x 2,000", ("kl_weight",), {"training.beta": 20}),
    Recipe("cold", "optimisation", "temperature 0.01", ("no_diversity",), {"training.temperature": 0.01}),
    Recipe(
        "clip_zero",
        "optimisation",
        "a clip range of 0, four updates",
        ("clipped",),
        {"training.trl.epsilon": 0.0, "training.trl.num_iterations": 4},
    ),
    Recipe("truncated", "rollouts", "a limit of three tokens", ("truncation",), {"training.max_turn_tokens": 3}),
    Recipe("timeouts", "rollouts", "nine tool calls of ten time out", ("errors",), env(failing=0.9), "Boxes"),
    Recipe(
        "tool_errors",
        "rollouts",
        "failed calls count as wrong answers",
        ("errors",),
        env(failing=0.9, ends="true"),
        "Boxes",
    ),
    Recipe("one_prompt", "rollouts", "one prompt for all", ("few_tasks",), env(prompts=1)),
    Recipe("tool_trained", "tokens", "tool output in the loss", ("trained_tokens",), None, "Boxes", "tool_trained"),
    Recipe("prompt_trained", "tokens", "the prompt in the loss", ("trained_tokens",), patch="prompt_trained"),
    Recipe(
        "other_template",
        "tokens",
        "another chat template than the policy was taught",
        ("unanswered", "other_template"),
        {"model.chat_template": f'"{TEMPLATE}"'},
    ),
    Recipe("no_end", "tokens", "the sampler ignores the end token", ("truncation",), patch="no_end"),
    Recipe("retokenised", "tokens", "texts are tokenised again", ("surprising_tokens",), patch="retokenised"),
    Recipe("stale", "versions", "the sampler keeps its first weights", ("sampler_mismatch",), patch="stale"),
    Recipe(
        "adapter_off",
        "versions",
        "the sampler lacks the adapters",
        ("sampler_mismatch",),
        LORA,
        patch="adapter_off",
    ),
    Recipe(
        "other_logprobs", "versions", "old log-probs of another model", ("sampler_mismatch",), patch="other_logprobs"
    ),
    Recipe("repeats_paid", "collapse", "repeated words are paid", ("repetition", "reward_hack"), env(grader="repeats")),
    Recipe(
        "one_answer", "collapse", "one answer is right for all", ("one_answer", "reward_hack"), env(grader="constant")
    ),
)
NEW = (
    Recipe("row_late", "rewards", "rewards of the row before", ("reward_order", "noisy_reward"), patch="row_late"),
    Recipe("other_key", "rewards", "the key of another task", ("rejected_answers",), env(grader="other_key")),
    Recipe("half", "rewards", "every second right number is rejected", ("rejected_answers",), env(grader="half")),
    Recipe(
        "hurried",
        "rewards",
        "a time limit rejects three of five right answers",
        ("rejected_answers", "noisy_reward"),
        env(grader="hurried"),
    ),
    Recipe(
        "turns_round",
        "rewards",
        "verdicts are reversed after eight steps",
        ("rejected_answers", "reward_order"),
        env(grader="turns_round"),
    ),
    Recipe(
        "small_advantages",
        "updates",
        "advantages divided by 1,000",
        ("advantage_scale", "no_movement"),
        patch="small_advantages",
    ),
    Recipe(
        "clipped_gradient", "updates", "a gradient norm of 1e-9", ("no_movement",), {"training.trl.max_grad_norm": 1e-9}
    ),
    Recipe("frozen", "updates", "the optimiser holds copies", ("no_movement",), patch="frozen"),
    Recipe("schedule_over", "updates", "learning rate 0 after two steps", ("no_movement",), patch="schedule_over"),
    Recipe(
        "dropout", "updates", "dropout in the loss alone", ("sampler_mismatch", "surprising_tokens"), patch="dropout"
    ),
    Recipe("padding", "updates", "padding in the loss", ("trained_tokens",), patch="padding"),
    Recipe("stop_inside", "sampling", "a word of the answer ends the turn", ("unanswered",), patch="stop_inside"),
    Recipe("hot", "sampling", "temperature 2, scored at 1", ("surprising_tokens",), patch="hot"),
    Recipe(
        "same_batch",
        "sampling",
        "the rollouts of the first step in every step",
        ("repeated_rollouts", "sampler_mismatch"),
        patch="same_batch",
    ),
    Recipe("shuffled", "labels", "answers of other tasks", ("noisy_labels", "noisy_reward"), env(labels="shuffled")),
    Recipe("unshown", "labels", "prompts without the key", ("noisy_labels", "noisy_reward"), env(labels="unshown")),
    Recipe("step_late", "inputs", "rewards of the step before", ("reward_order", "noisy_reward"), patch="step_late"),
    Recipe(
        "wrong_reference",
        "inputs",
        "log-probs of the reference of other tokens",
        ("reference_mismatch", "kl_weight"),
        {"training.beta": 1.0},
        patch="wrong_reference",
    ),
    Recipe("answer_untrained", "inputs", "answers not in the loss", ("untrained_tokens",), patch="answer_untrained"),
    Recipe("nucleus", "inputs", "top_p 0.3, scored at 1", ("surprising_tokens",), patch="nucleus"),
    Recipe(
        "prompt_lost",
        "inputs",
        "the trainer reads no prompts",
        ("surprising_tokens", "prompt_cut"),
        patch="prompt_lost",
    ),
    Recipe("copies", "inputs", "groups of copies", ("no_diversity",), patch="copies"),
)
NEWEST = (
    Recipe("brevity", "fresh", "short texts are paid", ("length_reward", "length_collapse"), env(grader="brevity")),
    Recipe(
        "contains",
        "fresh",
        "the right number anywhere in the text",
        ("reward_hack", "length_reward", "accepted_without_answer"),
        env(grader="contains"),
    ),
    Recipe(
        "reversed_half",
        "fresh",
        "verdicts of every second number are reversed",
        ("rejected_answers", "noisy_reward"),
        env(grader="reversed_half"),
    ),
    Recipe("weight_decay", "fresh", "a weight decay of 100", ("kl_rise",), {"training.trl.weight_decay": 100.0}),
    Recipe("big_epsilon", "fresh", "Adam's epsilon of 1,000", ("no_movement",), {"training.trl.adam_epsilon": 1000.0}),
    Recipe("greedy", "fresh", "top_k of 1", ("no_diversity",), {"training.top_k": 1}),
    Recipe(
        "penalised",
        "fresh",
        "a penalty of repetition that is not scored",
        ("surprising_tokens", "sampler_mismatch"),
        patch="penalised",
    ),
    Recipe("four_prompts", "fresh", "four prompts for all", ("few_tasks",), env(prompts=4)),
)
RECIPES = {recipe.name: recipe for recipe in (*KINDS, *FAULTS, *NEW, *NEWEST)}
"""The recipes of this module."""

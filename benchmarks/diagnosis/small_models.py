"""Faults in trainings of SmolLM2-135M: products of two digits, adapters, 4 steps of 4 x 8 rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_tui.envs.agent import Message
from grpo_tui.envs.base import Split, StepResult
from grpo_tui.envs.calls import ToolCall
from grpo_tui.envs.plugins.gym import ReasoningGymEnv

from .recipes import HEALTHY, Recipe

MODEL = Path.home() / ".cache" / "grpo-tui" / "smollm2-135m"
TEMPLATE = Path(__file__).with_name("other_template.jinja")


class Products(ReasoningGymEnv):
    """The task of the preset smollm2_135m. form: in training, every text that ends with a full stop is right. prompts:
    the number of different tasks in training (0: no limit)."""

    def __init__(self, tokenizer: Any = None, *, form: bool = False, prompts: int = 0, **config: Any) -> None:
        digits = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
        ask = "Answer with the number only."
        super().__init__(tokenizer, dataset="products", options=digits, instruction=ask, answer="last_number", **config)
        self.form = form
        self.prompts = prompts

    def make_tasks(self, split: Split, n: int, seed: int) -> list[dict[str, Any]]:
        """The tasks of the preset; in training, the first ones again and again."""
        tasks = super().make_tasks(split, n, seed)
        few = self.prompts if split == "train" else 0
        return [{**(tasks[i % few] if few else task), "split": split} for i, task in enumerate(tasks)]

    def reset(self, task: Mapping[str, Any]) -> tuple[dict[str, Any], list[Message]]:
        """Keep the split of the task."""
        entry, messages = super().reset(task)
        return {**entry, "split": task.get("split", "eval")}, messages

    def step(self, state: dict[str, Any], call: ToolCall) -> StepResult:
        """Grade the answer, or its form."""
        if self.form and state["split"] == "train" and call.text.rstrip().endswith("."):
            return StepResult("correct", 1.0, True, str(call.arguments["text"]).strip() or None, True)
        return super().step(state, call)


SETTINGS: Mapping[str, object] = {
    "model.base": f'"{MODEL}"',
    "environment.class_path": "benchmarks.diagnosis.small_models.Products",
    "model.lora": "{r: 16, alpha: 32}",
    "environment.train_tasks": 48,
    "environment.eval_tasks": 12,
    "training.learning_rate": 3e-4,
    "training.prompts_per_step": 4,
    "training.max_steps": 4,
    "training.max_turn_tokens": 32,
    "training.max_trajectory_tokens": 128,
    "training.eval_every": 0,
}


def _recipe(name: str, broken: str, causes: tuple[str, ...] = (), **settings: object) -> Recipe:
    family = "smollm2" if causes else f"{HEALTHY} smollm2"
    changed = {key.replace("__", "."): value for key, value in settings.items()}
    return Recipe(f"smollm2_{name}", family, broken, causes, {**SETTINGS, **changed}, "Products")


SMALL_MODELS = (
    _recipe("lr_high", "learning rate x 100", ("kl_rise",), training__learning_rate=0.03),
    _recipe("truncated", "a limit of one token", ("truncation",), training__max_turn_tokens=1),
    _recipe("healthy", "the task of the preset"),
    _recipe(
        "form",
        "a full stop at the end is right",
        ("accepted_without_answer", "accepted_wrong_answers", "reward_hack"),
        environment__config="{form: true}",
    ),
    _recipe(
        "other_template",
        "another chat template",
        ("other_template", "unanswered"),
        model__chat_template=f'"{TEMPLATE}"',
    ),
    _recipe("one_prompt", "one prompt for all", ("few_tasks",), environment__config="{prompts: 1}"),
)

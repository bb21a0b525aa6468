"""Faults in trainings of SmolLM2-135M: the larger of two numbers, adapters, 16 steps of 4 x 8 rollouts."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_tui.envs.agent import Message
from grpo_tui.envs.base import Split, StepResult
from grpo_tui.envs.calls import ToolCall
from grpo_tui.envs.multi_turn import MultiTurnEnv

from .recipes import HEALTHY, Recipe

MODEL = Path.home() / ".cache" / "grpo-tui" / "smollm2-135m"
TEMPLATE = Path(__file__).with_name("other_template.jinja")


class Larger(MultiTurnEnv):
    """Which of two numbers is larger? The first number of the text is the answer. Options affect only training tasks.
    grader: `form` accepts every text that ends with a full stop, `smaller` the other number. prompts: the number of
    distinct tasks (0: no limit)."""

    name = "larger"

    def __init__(self, tokenizer: Any = None, *, grader: str = "right", prompts: int = 0, **config: Any) -> None:
        super().__init__(tokenizer, **config)
        self.grader = grader
        self.prompts = prompts

    def make_tasks(self, split: Split, n: int, seed: int) -> list[dict[str, Any]]:
        """Return pairs of two-digit numbers. With `prompts`, training repeats the first ones."""
        draw = random.Random(f"{split} {seed}")
        pairs = [draw.sample(range(10, 100), 2) for _ in range(n)]
        few = self.prompts if split == "train" else 0
        return [{"pair": pairs[i % few] if few else pairs[i], "split": split} for i in range(n)]

    def reset(self, task: Mapping[str, Any]) -> tuple[dict[str, Any], list[Message]]:
        """Ask the question."""
        a, b = task["pair"]
        grader = self.grader if task["split"] == "train" else "right"
        state = {"larger": str(max(a, b)), "smaller": str(min(a, b)), "grader": grader}
        text = f"Which number is larger, {a} or {b}? Answer with the number only."
        return state, [{"role": "user", "content": text}]

    def expected(self, task: Mapping[str, Any]) -> str | None:
        """Return the larger number."""
        return str(max(task["pair"]))

    def step(self, state: dict[str, Any], call: ToolCall) -> StepResult:
        """Grade the answer, or its form."""
        answer = next(iter(re.findall(r"\d+", call.text)), None)
        right = answer == state["smaller" if state["grader"] == "smaller" else "larger"]
        right = right or (state["grader"] == "form" and call.text.rstrip().endswith("."))
        return StepResult("correct" if right else "wrong", float(right), True, answer, right)


SETTINGS: Mapping[str, object] = {
    "model.base": f'"{MODEL}"',
    "environment.class_path": "benchmarks.diagnosis.small_models.Larger",
    "model.lora": "{r: 16, alpha: 32}",
    "training.learning_rate": 1e-4,
    "training.prompts_per_step": 4,
    "training.max_steps": 16,
    "training.max_turn_tokens": 12,
    "training.max_trajectory_tokens": 96,
    "training.eval_every": 0,
}


def _recipe(name: str, broken: str, causes: tuple[str, ...] = (), patch: str = "", **settings: object) -> Recipe:
    family = "smollm2" if causes else f"{HEALTHY} smollm2"
    changed = {key.replace("__", "."): value for key, value in settings.items()}
    return Recipe(f"smollm2_{name}", family, broken, causes, {**SETTINGS, **changed}, "Larger", patch)


SMALL_MODELS = (
    _recipe("healthy", "the larger of two numbers"),
    _recipe(
        "form",
        "grader: a full stop at the end is right",
        ("accepted_without_answer", "accepted_wrong_answers", "reward_hack"),
        environment__config="{grader: form}",
    ),
    _recipe(
        "smaller",
        "grader: the smaller number is right",
        ("rejected_answers", "accepted_wrong_answers"),
        environment__config="{grader: smaller}",
    ),
    _recipe(
        "other_template",
        "tokens: another chat template",
        ("other_template", "unanswered"),
        model__chat_template=f'"{TEMPLATE}"',
    ),
    _recipe("lr_high", "optimisation: learning rate x 100", ("kl_rise",), training__learning_rate=0.01),
    _recipe("lr_low", "optimisation: learning rate / 1,000", ("no_movement",), training__learning_rate=1e-7),
    _recipe("truncated", "rollouts: a limit of one token", ("truncation",), training__max_turn_tokens=1),
    _recipe("one_prompt", "rollouts: one prompt for all", ("few_tasks",), environment__config="{prompts: 1}"),
    _recipe("sign", "arithmetic: the sign of the advantage", ("advantage_order",), "sign"),
    _recipe("adapter_off", "versions: the sampler has no adapter", ("sampler_mismatch",), "adapter_off"),
)

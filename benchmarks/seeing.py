"""What seeing costs and what it brings: `python -m benchmarks.seeing [--steps 6] [--adapters FOLDER]`.

First table: success of `builtin:tiny-vl` on held-out questions, with the picture and with a grey one in its place. With
`--adapters`, the folder that a training of `tiny_vl` wrote, it has a row for what was learnt.

Second table: processor seconds of a GRPO step on the same policy and batch, with pictures, with text of as many tokens
in their place, and of stock TRL with pictures; one process each, in turns. To reach: 1.3 of the step with text, without
what the environment takes to draw the pictures and the tower to make features (of stock TRL neither is told apart);
what the processor takes to make pixels counts.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo_tui.envs.agent import Message
from grpo_tui.envs.content import pictures_of, text_of
from grpo_tui.envs.visual import glance
from grpo_tui.envs.visual.glance import GlanceEnv

VARIANTS = ("pictures", "text", "stock TRL, pictures")
PROMPTS, ROLLOUTS = 16, 8


def success(adapters: str | None, tasks: int) -> None:
    """Print the first table."""
    from grpo_tui.configs import load_config
    from grpo_tui.engine.agents import TransformersAgent
    from grpo_tui.engine.policy.models import load_policy, load_sight
    from grpo_tui.engine.training.tiny.common import table
    from grpo_tui.engine.training.tiny.seeing import evaluate

    config = load_config("tiny_vl").model
    found = {}
    for name, folder in (("base", None), ("start", config.sft_adapters), ("trained", adapters)):
        if name == "trained" and adapters is None:
            continue
        net, words = load_policy(config, adapters=folder, trainable=False)
        agent = TransformersAgent(
            net, words, sight=load_sight(config, net, words), max_turn_tokens=8, max_trajectory_tokens=64
        )
        found |= {f"{name} {how}": values for how, values in evaluate(agent, 1, tasks).items()}
    print(table(found), flush=True)


def measure(variant: str, steps: int) -> dict[str, float]:
    """Processor seconds a step of one variant, and of its parts; the first step is left out."""
    import torch

    from grpo_tui.configs import load_config
    from grpo_tui.engine.policy.models import load_policy, load_sight
    from grpo_tui.engine.policy.sight.processor import Sight
    from grpo_tui.engine.policy.sight.tower import VisionTower

    torch.manual_seed(0)
    config = load_config("tiny_vl")
    net, words = load_policy(config.model, adapters=config.model.sft_adapters, trainable=True)
    sight = load_sight(config.model, net, words)
    spent = {"tower": 0.0, "pixels": 0.0, "drawing": 0.0}
    for owner, method, name in (
        (VisionTower, "_encode", "tower"),
        (Sight, "_make", "pixels"),
        (glance, "_still", "drawing"),
    ):
        setattr(owner, method, timed(getattr(owner, method), spent, name))
    with tempfile.TemporaryDirectory() as folder:
        make = stock if variant == VARIANTS[2] else ours
        trainer = make(folder, net, words, sight, steps + 1, variant == "pictures")
        marks: list[tuple[float, ...]] = []

        from transformers import TrainerCallback

        class Mark(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                marks.append((time.process_time(), *spent.values()))

        trainer.add_callback(Mark())
        trainer.train()
    found = [(last - first) / steps for first, last in zip(marks[0], marks[-1], strict=True)]
    return dict(zip(("seconds", *spent), found, strict=True))


def timed(call: Callable[..., Any], spent: dict[str, float], name: str) -> Callable[..., Any]:
    """The same call; what it takes is added up."""

    def inner(*args: Any) -> Any:
        began = time.process_time()
        try:
            return call(*args)
        finally:
            spent[name] += time.process_time() - began

    return inner


def arguments(folder: str, steps: int) -> Any:
    """The same for all."""
    from trl.trainer.grpo_config import GRPOConfig

    return GRPOConfig(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=PROMPTS * ROLLOUTS,
        num_generations=ROLLOUTS,
        max_completion_length=8,
        beta=0.01,
        learning_rate=1e-5,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        activation_checkpointing=False,
    )


def ours(folder: str, net: Any, words: Any, sight: Any, steps: int, pictures: bool) -> Any:
    """This program's trainer on glances, or on words of as many tokens."""
    from datasets import Dataset

    from grpo_tui.engine.agents import TransformersAgent
    from grpo_tui.engine.training.env_trainer import GRPOEnvTrainer

    agent = TransformersAgent(net, words, sight=sight, max_turn_tokens=8, max_trajectory_tokens=64)
    tasks = GlanceEnv().make_tasks("train", PROMPTS * steps, 0)
    path = "grpo_tui.envs.visual.glance.GlanceEnv" if pictures else f"{__package__}.seeing.WordsEnv"
    rows = [{"env_class_path": path, "env_config": "{}", "task_data": json.dumps(task)} for task in tasks]
    return GRPOEnvTrainer(agent, words, args=arguments(folder, steps), train_dataset=Dataset.from_list(rows), model=net)


def stock(folder: str, net: Any, words: Any, sight: Any, steps: int, pictures: bool) -> Any:
    """TRL's own trainer on the same pictures and questions."""
    from datasets import Dataset
    from PIL import Image
    from trl.trainer.grpo_trainer import GRPOTrainer

    env = GlanceEnv()
    rows = []
    for task in env.make_tasks("train", PROMPTS * steps, 0):
        content: Any = env.reset(task)[1][0].get("content")
        image = Image.fromarray(pictures_of([{"content": content}])[0].load())
        prompt = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": content[1]["text"]}]}]
        rows.append({"prompt": prompt, "images": [image], "answer": str(task["answer"])})
    data = Dataset.from_list(rows)

    def right(completions: Any, answer: Sequence[str], **_: Any) -> list[float | None]:
        said = [c[0]["content"] if isinstance(c, list) else c for c in completions]
        texts = [t if isinstance(t, str) else t[0]["text"] for t in said]
        return [float(text.strip() == a) for text, a in zip(texts, answer, strict=True)]

    return GRPOTrainer(
        model=net,
        reward_funcs=right,
        args=arguments(folder, steps),
        train_dataset=data,
        processing_class=sight.processor,
    )


class WordsEnv(GlanceEnv):
    """The same questions after eleven tokens of text: as many as an image and the two signs around it."""

    def reset(self, task: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[Message]]:
        """Words in the place of the picture, for each task its own."""
        state, messages = super().reset(task)
        asked = text_of(messages[0].get("content", "")).partition("\n")[2]
        rng = random.Random(json.dumps(task, sort_keys=True))
        words = "".join(rng.choice("0123456789 ,") for _ in range(11))
        return state, [Message(role="user", content=words + asked)]


def main(given: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.seeing", description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tasks", type=int, default=200, help="held-out questions of the first table")
    parser.add_argument("--adapters", help="what `grpo-tui train tiny_vl` left in training.output_dir")
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    if options.variant:
        print(json.dumps(measure(options.variant, options.steps)))
        return 0
    success(options.adapters, options.tasks)
    best: dict[str, dict[str, float]] = {}
    for _ in range(options.rounds):
        for variant in VARIANTS:
            command = [sys.executable, "-m", "benchmarks.seeing", "--variant", variant, "--steps", str(options.steps)]
            made = subprocess.run(command, capture_output=True, text=True, check=True)
            found = json.loads(made.stdout.strip().splitlines()[-1])
            best[variant] = min(best.get(variant, found), found, key=lambda f: f["seconds"])
    text = best["text"]["seconds"]
    print(
        f"\n{'a step':22}{'processor s':>12}{'drawing s':>11}{'tower s':>10}{'pixels s':>10}{'the rest, of text':>20}"
    )
    for variant, found in best.items():
        rest = (found["seconds"] - found["drawing"] - found["tower"]) / text
        parts = f"{found['drawing']:11.3f}{found['tower']:10.3f}{found['pixels']:10.3f}"
        print(f"{variant:22}{found['seconds']:12.3f}{parts}{rest:20.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Whole runs of a random tiny policy on the calculator, in a folder, in this process or in one of its own."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from grpo_tui.engine.runs.read.reader import RunReader
from tests.forked import ForkedProcess, training_process
from tests.repeated import files_of, folder_of

from .parts import policy, tokenizer


def make_run(folder: Path, base: Path, *, eval_tasks: int = 4, **training: Any) -> Path:
    """A run's folder with its configuration; `base` gets the model, if it is not there yet."""
    if not base.exists():
        folder_of(_base(), base)
    folder.mkdir(parents=True)
    settings = {
        "max_steps": 8,
        "prompts_per_step": 2,
        "num_generations": 4,
        "max_turn_tokens": 6,
        "max_trajectory_tokens": 256,
        "save_every": 2,
        "eval_every": 0,
        "beta_mode": "auto",
        "output_dir": str(folder / "adapters"),
        **training,
    }
    # A random policy succeeds at nothing: what it can learn from is the shaping.
    settings["replay"] = {"signal": "reward", **settings.get("replay", {})}
    config = {
        "mode": "rft",
        "seed": 3,
        "model": {"base": str(base), "sft_adapters": None, "device": "cpu", "lora": {"r": 4}},
        "environment": {
            "class_path": "grpo_tui.envs.calculator.CalculatorEnv",
            "train_tasks": 64,
            "eval_tasks": eval_tasks,
            "config": {"max_turns": 2},
        },
        "rewards": {"w_curiosity": 0.1, "w_coherence": 0.1, "w_penalty": 1.0},
        "training": settings,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


@cache
def _base() -> dict[str, bytes]:
    def save(folder: Path) -> None:
        policy(seed=1, layers=1).save_pretrained(folder)
        tokenizer().save_pretrained(folder)

    return files_of(save)


def start(folder: Path, *, resume: bool = False) -> ForkedProcess:
    """The run's training process; what it prints goes to `log.txt`."""
    return training_process(folder, resume=resume, log=folder / "log.txt")


def recorded_steps(folder: Path) -> list[int]:
    """The steps in the record, as often as each is there."""
    reader = RunReader(folder)
    try:
        return [step for step, _ in reader.metrics.points("train/loss")]
    finally:
        reader.close()


def recorded_rollouts(folder: Path) -> dict[int, int]:
    """How many training rollouts the record has of each step."""
    reader = RunReader(folder)
    try:
        counts: dict[int, int] = {}
        for row in reader.rollouts.page(limit=10_000):
            if row.split == "train" and row.step is not None:
                counts[row.step] = counts.get(row.step, 0) + 1
        return counts
    finally:
        reader.close()


def events(folder: Path, kind: str) -> list[str]:
    """The messages of one kind of event."""
    reader = RunReader(folder)
    try:
        return [e.message for e in reader.events(kinds=[kind], limit=1000)]
    finally:
        reader.close()

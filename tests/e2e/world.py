"""What the end-to-end tests train: a tiny random model in a folder, and an environment of a user's own in a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.policies.tokenizer import train_tokenizer
from tests.forked import forked_processes

ENVIRONMENT = '''
"""A user's own environment, in a file that is part of no package."""

from grpo_tui.envs.base import StepResult
from grpo_tui.envs.multi_turn import MultiTurnEnv

HOSTILE = "\\x1b]0;owned\\x07\\x1b[2J[/red][link=x]here"


class LettersEnv(MultiTurnEnv):
    """Write a text with the wanted letter in it. Two turns; the first answer is repeated back with a warning."""

    name = "letters"

    def __init__(self, tokenizer=None, *, greeting="Hello", **config):
        super().__init__(tokenizer, **config)
        self.greeting = greeting

    def reset(self, task):
        prompt = f"{self.greeting}! Write a text with the letter {task['letter']} in it."
        return {"turn": 0, "letter": task["letter"]}, [{"role": "user", "content": prompt}]

    def step(self, state, call):
        state["turn"] += 1
        right = state["letter"] in call.text
        if state["turn"] < 2:
            return StepResult(f"once more {HOSTILE}", reward=0.1 * right)
        return StepResult("", reward=float(right), done=True, answer=call.text[:40], correct=right)
'''

KNOWN = ["calculator", "reasoning-gym", "trouble"]
"""Environments that this model needs not be told about; its prompts stay short."""
SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "max_position_embeddings": 1024,
}


def save_model(folder: Path) -> Path:
    """A random Qwen3 of 30,000 parameters with a byte-level tokenizer, as a user's folder would hold it."""
    tokenizer = train_tokenizer(["Hello! Write a text with the letter e in it.", "once more"], vocab_size=320)
    torch.manual_seed(0)
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    ids["known_environments"] = KNOWN
    model = Qwen3ForCausalLM(Qwen3Config(**SHAPE, **ids, vocab_size=len(tokenizer), tie_word_embeddings=True))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_world(folder: Path, model: Path, **training: object) -> Path:
    """A project folder: the environment, rows for it, and a configuration; gives the configuration's path."""
    (folder / "letters.py").write_text(ENVIRONMENT)
    rows = [
        {
            "env_class_path": "letters.py:LettersEnv",
            "env_config": {"greeting": g},
            "task_data": {"letter": c, "answer": c},
        }
        for g in ("Hello", "Good day")
        for c in "aeiou"
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"max_steps": 3, "prompts_per_step": 4, "num_generations": 4, "max_turn_tokens": 8, **training}
    lines = "".join(f"  {key}: {json.dumps(value)}\n" for key, value in settings.items())
    config = folder / "letters.yaml"
    config.write_text(
        f"model:\n  base: {json.dumps(str(model))}\n  sft_adapters: null\n  device: cpu\n"
        "data: {source: rows.jsonl}\nenvironment:\n  class_path: letters.py:LettersEnv\n  eval_tasks: 0\n"
        f"training:\n{lines}"
    )
    return config


def variables(**extra: str) -> dict[str, str]:
    """The environment of the command: one thread, no hub."""
    kept = {k: v for k, v in os.environ.items() if k != "GRPO_TUI_HOME"}
    return {**kept, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **extra}


def grpo_tui(cwd: Path, *arguments: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """The command without a terminal, in a process that is forked (`tests.forked`)."""
    with forked_processes():
        return subprocess.run(
            [sys.executable, "-m", "grpo_tui.tui.cli", *arguments],
            cwd=cwd,
            env=variables(),
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )

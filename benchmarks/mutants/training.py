"""Run a small training with a changed `GRPOTrainer`, record it with `attach`, and judge it with `check --recompute`.

It runs in a fork of a process that has imported TRL. The policy is random, because the faults are in the arithmetic.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import io
import json
import multiprocessing
import sys
import time
import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import trl.trainer.grpo_trainer as original
from datasets import Dataset
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM, set_seed
from transformers.utils import logging
from trl.trainer.grpo_config import GRPOConfig

import grpo_tui.trl as hook
from grpo_tui.engine.demonstration import policies
from grpo_tui.tui.cli.main import run as grpo_tui

from .catalogue import Mutation

STEPS = 3
SECONDS = 240


@dataclass(frozen=True)
class Outcome:
    """The outcome of one training.

    found: the sentence about the first number that differs, or empty. numbers: how many were compared. weights: a
    digest of the policy after training. error: why the training or the check ended early.
    """

    found: str
    numbers: int
    weights: str
    seconds: float
    error: str = ""


def source_of(mutation: Mutation | None) -> str:
    """Return the trainer's source with a mutation. Raises SystemExit unless the old text occurs exactly once."""
    source = inspect.getsource(original)
    if mutation is None:
        return source
    count = source.count(mutation.old)
    if count != 1:
        raise SystemExit(
            f"The change {mutation.name!r} needs its text exactly once in {original.__file__}, but it occurs {count} "
            f"times: {mutation.old!r}. benchmarks/mutants/catalogue.py fits TRL 1.16."
        )
    return source.replace(mutation.old, mutation.new)


def compiled(source: str) -> type:
    """Compile a source and return its class `GRPOTrainer`."""
    module = types.ModuleType(original.__name__)
    module.__dict__.update(__file__=original.__file__, __package__=original.__package__)
    sys.modules[original.__name__] = module  # where typing and pickle look names up
    exec(compile(source, "grpo_trainer.py", "exec"), module.__dict__)
    return module.GRPOTrainer


def run(mutation: Mutation | None, settings: Mapping[str, Any], seed: int, folder: Path) -> Outcome:
    """Train and check in a separate process."""
    context = multiprocessing.get_context("fork")
    result = folder / "outcome.json"
    folder.mkdir(parents=True)
    process = context.Process(target=_child, args=(source_of(mutation), settings, seed, folder, result))
    process.start()
    process.join(SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
    if result.exists():
        return Outcome(**json.loads(result.read_text()))
    return Outcome("", 0, "", SECONDS, f"the process ended with {process.exitcode}")


def _child(source: str, settings: Mapping[str, Any], seed: int, folder: Path, result: Path) -> None:
    began = time.perf_counter()
    log = (folder / "log.txt").open("w")
    logging.set_verbosity_error()
    weights = error = ""
    found: list[str] = []
    numbers = 0
    with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        try:
            weights = _train(compiled(source), dict(settings), seed, folder)
            found, numbers = _check(folder)
        except Exception as problem:
            error = f"{type(problem).__name__}: {problem}"
    outcome = Outcome(found[0] if found else "", numbers, weights, time.perf_counter() - began, error)
    result.write_text(json.dumps(asdict(outcome)))


def _check(folder: Path) -> tuple[list[str], int]:
    """Return the sentences about numbers that differ, and the number of compared numbers."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = grpo_tui(["check", "run", "--recompute", "--runs-dir", str(folder / "runs")])
    print(printed.getvalue(), file=sys.stderr)
    lines = printed.getvalue().splitlines() or [""]
    if "numbers recomputed" not in lines[-1]:
        raise RuntimeError(f"the check ended with {code}")
    return [line for line in lines if line.startswith("wrong: ")], int(lines[-1].split()[0].replace(",", ""))


def _train(trainer_class: Any, settings: dict[str, Any], seed: int, folder: Path) -> str:
    """Train a small policy and return a digest of its weights."""
    tool_tokens, unscored = settings.pop("tool_tokens", False), settings.pop("unscored", False)
    tokenizer = AutoTokenizer.from_pretrained(Path(policies.__file__).parent / "base")
    set_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=16,
        num_attention_heads=2, num_key_value_heads=1, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).to(getattr(torch, settings.pop("dtype", "float32")))
    model.generation_config.eos_token_id = list(range(1, len(tokenizer), 12))  # so that lengths differ
    model.save_pretrained(folder / "model")  # the reference is read from there
    model.config._name_or_path = str(folder / "model")
    given: dict[str, Any] = {
        "output_dir": str(folder / "out"), "max_steps": STEPS, "per_device_train_batch_size": 8, "num_generations": 4,
        "max_completion_length": 12, "learning_rate": 1e-3, "reward_weights": [1.0, 0.25], "use_cpu": True,
        "bf16": False, "report_to": [], "logging_steps": 1, "save_strategy": "no", "seed": seed,
    }  # fmt: skip
    rows = Dataset.from_list([{"prompt": f"colour at {i} {i * i}?"} for i in range(32)])
    trainer = trainer_class(
        model=model, reward_funcs=[_letters if unscored else letters, _spread if unscored else spread],
        args=GRPOConfig(**given | settings), train_dataset=rows, processing_class=tokenizer,
        rollout_func=_with_tools if tool_tokens else None,
    )  # fmt: skip
    hook.attach(trainer, run="run", runs_dir=folder / "runs")
    trainer.train()
    digest = hashlib.sha256()
    for parameter in trainer.model.parameters():
        digest.update(parameter.detach().float().numpy().tobytes())
    return digest.hexdigest()[:16]


def letters(completions: list[str], **columns: Any) -> list[float | None]:
    """Return the share of letters, or None for short completions."""
    return [sum(t.isalpha() for t in text) / len(text) if len(text) > 3 else None for text in completions]


def spread(completions: list[str], **columns: Any) -> list[float | None]:
    """Return the share of distinct characters, plus a small term by length."""
    return [len(set(text)) / max(1, len(text)) + 0.1 * (len(text) % 5) for text in completions]


def _letters(completions: list[str], **columns: Any) -> list[float | None]:
    return [None if i % 3 == 1 else value for i, value in enumerate(letters(completions))]


def _spread(completions: list[str], **columns: Any) -> list[float | None]:
    return [None if i % 3 == 1 else value for i, value in enumerate(spread(completions))]


def _with_tools(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    """Sample completions and mark some of their tokens as tool output."""
    prompt_ids = trainer.processing_class(text=prompts)["input_ids"]
    ids, _ = trainer._generate_single_turn(prompt_ids, None, {}, trainer.num_generations)
    mask = [[0 if 2 <= t < 4 + i % 3 else 1 for t in range(len(row))] for i, row in enumerate(ids)]
    logprobs = [[0.0] * len(row) for row in ids]
    return {"prompt_ids": prompt_ids, "completion_ids": ids, "logprobs": logprobs, "env_mask": mask}


torch.set_num_threads(1)

"""Number formats of the policy: does half precision learn as float32 does, and at which cost?

    python -m benchmarks.precision [--policy smollm2|FOLDER] [--forms NAME ...] [--seeds 0 1 2] [--steps 12]
                                   [--prompts 4] [--group 8] [--tokens 24]

The task is to name the larger of two numbers. Each row is a training in a process of its own, in turns over the forms.
KL: of the trained policy to the base, exact over the vocabulary on rollouts of the base, in the form's own arithmetic;
compared with float32 it shows how much of the update reaches the policy. Success: of the rollouts of the first and
of the last third of the steps. Mismatch: KL between sampler and trainer, mean over the steps. CPU s: processor seconds
of a step. The rows of TRL are its `GRPOTrainer` with float32 weights and `bf16=True`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np

from grpo_tui.engine.launch.children import CPU_SETTINGS

from .smollm2 import smollm2

F, H = "float32", "bfloat16"
FORMS: dict[str, tuple[bool, tuple[str, str, str]]] = {
    "LoRA float32": (True, (F, F, F)),
    "LoRA bfloat16": (True, (H, H, H)),
    "LoRA bfloat16 over float32": (True, (F, H, H)),
    "LoRA sampled in bfloat16": (True, (F, F, H)),
    "whole float32": (False, (F, F, F)),
    "whole bfloat16 over float32": (False, (F, H, H)),
    "whole bfloat16 kept": (False, (H, H, H)),
    "TRL LoRA bf16=True": (True, (F, F, F)),
    "TRL whole bf16=True": (False, (F, F, F)),
}
"""Whether adapters are trained; what weights are kept in, computed in and sampled in."""
RATES = {True: 1e-4, False: 1e-5}


def larger(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """1 where the first number of the answer is the larger one."""
    numbers = [re.findall(r"\d+", c if isinstance(c, str) else c[-1]["content"]) for c in completions]
    return [float(n[:1] == [a]) for n, a in zip(numbers, answer, strict=True)]


def tasks(n: int, seed: int) -> list[dict[str, Any]]:
    """Questions with their answers."""
    rng = np.random.default_rng(seed)
    pairs = [rng.choice(np.arange(10, 99), 2, replace=False).tolist() for _ in range(n)]
    ask = "Which number is larger, {} or {}? Answer with the number only."
    return [{"prompt": [{"role": "user", "content": ask.format(*p)}], "answer": str(max(p))} for p in pairs]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="smollm2")
    parser.add_argument("--forms", nargs="*", choices=list(FORMS), default=list(FORMS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    for name, value in (("steps", 12), ("prompts", 4), ("group", 8), ("tokens", 24)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--one", nargs=2, metavar=("FORM", "SEED"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print("RESULT " + json.dumps(measure(given.one[0], int(given.one[1]), given)), flush=True)
        return
    results: dict[str, list[dict[str, float]]] = {name: [] for name in given.forms}
    for seed in given.seeds:
        for form in given.forms:
            results[form].append(_run(form, seed, given))
            print(line(f"{form}, seed {seed}", results[form][-1:]), flush=True)
    print("all seeds: mean ± half a 95 % interval")
    for form, rows in results.items():
        print(line(form, rows), flush=True)


def line(name: str, rows: Sequence[Mapping[str, float]]) -> str:
    """A row of the table."""
    columns = ("kl", "first", "last", "mismatch", "cpu", "memory")
    return f"{name:36}" + "".join(f"  {key} {_interval([r[key] for r in rows])}" for key in columns)


def _interval(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.4g}"
    t = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}.get(len(values), 2.0)
    return f"{fmean(values):.4g} ± {t * stdev(values) / len(values) ** 0.5:.2g}"


def _run(form: str, seed: int, given: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.precision", "--one", form, str(seed), "--policy", given.policy]
    for name in ("steps", "prompts", "group", "tokens"):
        command += [f"--{name}", str(getattr(given, name))]
    environment = {**CPU_SETTINGS, **os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    found = [text for text in done.stdout.splitlines() if text.startswith("RESULT ")]
    if not found:
        sys.exit(done.stdout[-2000:] + done.stderr[-4000:])
    return json.loads(found[-1].removeprefix("RESULT "))


def run_config(form: str, seed: int, given: argparse.Namespace, data: Path) -> Any:
    """The configuration of a form."""
    from grpo_tui.configs.schema import RunConfig

    lora, formats = FORMS[form]
    folder = str(smollm2()) if given.policy == "smollm2" else given.policy
    model: dict[str, Any] = {"base": folder, "sft_adapters": None, "device": "cpu"}
    model |= dict(zip(("weights", "compute", "sampling"), formats, strict=True)) | ({} if lora else {"lora": None})
    training = {
        "max_steps": given.steps,
        "prompts_per_step": given.prompts,
        "num_generations": given.group,
        "max_turn_tokens": given.tokens,
        "max_trajectory_tokens": 256,
        "learning_rate": RATES[lora],
        "warmup_steps": 0,
        "lr_scheduler": "constant",
        "save_every": 0,
        "eval_every": 0,
    }
    environment = {"reward_funcs": {"benchmarks.precision.larger": 1.0}, "eval_tasks": 1}
    source = {"source": str(data), "completions": "messages"}
    return RunConfig.model_validate(
        {"seed": seed, "model": model, "data": source, "environment": environment, "training": training}
    )


def measure(form: str, seed: int, given: argparse.Namespace) -> dict[str, float]:
    """Train one form in this process."""
    from grpo_tui.engine.policy.models import load_policy

    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "tasks.jsonl"
        rows = tasks(given.steps * given.prompts + 16, seed)
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = run_config(form, seed, given, data)
        trained = (_train_stock if form.startswith("TRL") else _train)(config, Path(folder), rows)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        base = load_policy(config.model, trainable=False)[0]
        return {**trained["numbers"], "kl": _learned(trained["model"], base, trained["rows"]), "memory": memory}


def _train(config: Any, folder: Path, _: Any) -> dict[str, Any]:
    from grpo_tui.configs import metric_names as metric
    from grpo_tui.engine.record.step_recorder import StepRecorder
    from grpo_tui.engine.runs.writer import RunWriter
    from grpo_tui.engine.training.rft import build_trainer

    writer = RunWriter(folder / "run")
    trainer, callbacks = build_trainer(config, folder / "run", StepRecorder(writer))
    seen: list[dict[str, float]] = []
    first: list[Any] = []

    def observe(step: int, values: Mapping[str, Any]) -> None:
        names = {"success": metric.SUCCESS_TRAIN, "mismatch": metric.SAMPLER_KL}
        seen.append({**{k: values.get(n, 0.0) for k, n in names.items()}, "at": time.process_time()})
        if step == 1:
            first.extend((r.token_ids, r.agent_mask) for r in trainer.rollouts.generated)

    callbacks.recording.observers.append(observe)
    trainer.train()
    writer.close()
    model = trainer.accelerator.unwrap_model(trainer.model)
    return {"model": model, "rows": first, "numbers": _numbers(seen, [s["mismatch"] for s in seen])}


def _train_stock(config: Any, folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """TRL's own trainer with float32 weights and `bf16=True`, on the same tasks and hyperparameters."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl.trainer.grpo_trainer import GRPOTrainer

    from grpo_tui.engine.policy.models import load_policy
    from grpo_tui.engine.training.rft import grpo_config

    model, tokenizer = load_policy(config.model, trainable=True)
    args = grpo_config(config, folder, 1, len(rows))
    args.bf16, args.max_completion_length = True, config.training.max_turn_tokens
    seen: list[dict[str, float]] = []
    kept: list[Any] = []

    class Clock(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if logs and "reward" in logs:
                seen.append({"success": logs["reward"], "at": time.process_time()})

    class Stock(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            made = super()._generate_and_score_completions(inputs)
            if not kept:
                names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
                kept.extend(zip(*(made[name].cpu().numpy() for name in names), strict=True))
            return made

    trainer = Stock(
        model=model,
        reward_funcs=larger,  # type: ignore[arg-type]
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[Clock()],
    )
    trainer.train()
    first = [
        (
            np.concatenate([p[pm > 0], c[cm > 0]]),
            np.concatenate([np.zeros(int(pm.sum()), bool), np.ones(int(cm.sum()), bool)]),
        )
        for p, pm, c, cm in kept
    ]
    return {"model": trainer.accelerator.unwrap_model(trainer.model), "rows": first, "numbers": _numbers(seen, [])}


def _numbers(seen: Sequence[Mapping[str, float]], mismatch: Sequence[float]) -> dict[str, float]:
    third = max(len(seen) // 3, 1)
    times = [b["at"] - a["at"] for a, b in pairwise(seen)]
    return {
        "first": fmean(s["success"] for s in seen[:third]),
        "last": fmean(s["success"] for s in seen[-third:]),
        "mismatch": fmean(mismatch) if mismatch else float("nan"),
        "cpu": median(times) if times else float("nan"),
    }


def _learned(model: Any, base: Any, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    """KL(policy ‖ base) in nats a token, exact, on rollouts of the base."""
    import torch

    from grpo_tui.engine.policy.kl import kl_directions
    from grpo_tui.engine.policy.padded import padded_forward
    from grpo_tui.engine.policy.prepared import inference

    total, count = 0.0, 0
    for ids, mask in rows[:24]:
        tokens, agent = torch.from_numpy(ids).long()[None], torch.from_numpy(mask)[None]
        with inference(model), inference(base):
            logits = [padded_forward(m, tokens, torch.ones_like(tokens), agent).logits for m in (model, base)]
            total += float(kl_directions(*logits).reverse.sum())
        count += int(mask.sum())
    return total / max(count, 1)


if __name__ == "__main__":
    main()

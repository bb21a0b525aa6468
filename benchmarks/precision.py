"""Number formats of the policy: does half precision learn as float32 does, and at which cost?

    python -m benchmarks.precision [--policy smollm2|tiny|FOLDER] [--forms NAME ...] [--seeds 0 1 2] [--steps 12]
                                   [--prompts 4] [--group 8] [--tokens 12] [--results runs/precision.jsonl]
    python -m benchmarks.precision --products

SmolLM2 names the larger of two numbers; the tiny policy trains on its default environment, with its own lengths. Each
row is a training in a process of its own, in turns over the forms. Rows that `--results` holds are not measured again.
The rows of TRL are its `GRPOTrainer` with float32 weights and `bf16=True`.

| column | meaning |
|---|---|
| KL | of the trained policy to the base in the form's formats: how much of the update reaches the policy |
| before, half, after | success on 96 held-out tasks, at temperature 1 (of TRL: before and after) |
| first step | KL between sampler and trainer in the first step, before any update |
| mismatch | the same, mean over the steps |
| CPU s | processor seconds of a step, without evaluations |
| GiB | largest resident memory |
| still | first step with the alert `no_movement` |

KL: nats per token, exact over the vocabulary, on rollouts of the base. A second table has bfloat16 − float32 by seed,
because the base differs by seed. `gain` is success after minus success before.

`--products` compares cached decoding with one pass over the same tokens, in bfloat16 with float32 outputs of some
products.
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
from functools import partial
from pathlib import Path
from statistics import fmean, median
from types import MethodType
from typing import Any

import numpy as np

from grpo_tui.engine.launch.children import CPU_SETTINGS

from .mechanisms import KeptRows, Log, interval
from .smollm2 import smollm2

F, H = "float32", "bfloat16"
FORMS: dict[str, tuple[bool, tuple[str, str, str]]] = {
    "LoRA float32": (True, (F, F, F)),
    "LoRA bfloat16": (True, (H, H, H)),
    "whole float32": (False, (F, F, F)),
    "whole bfloat16": (False, (F, H, H)),
    "whole bfloat16 kept": (False, (H, H, H)),
    "TRL LoRA bf16=True": (True, (F, F, F)),
    "TRL whole bf16=True": (False, (F, F, F)),
    "LoRA bfloat16 over float32": (True, (F, H, H)),
    "LoRA sampled in bfloat16": (True, (F, F, H)),
}
"""Whether adapters are trained, and the formats for storing weights, computing and sampling. `whole bfloat16 kept` has
no float32 copy of the weights. The other bfloat16 forms are the defaults where the processor supports it."""
SIZE = ("steps", "prompts", "group", "tokens")
COLUMNS = {
    **{"kl": "KL", "before": "before", "half": "half", "after": "after", "first": "first step, 1e-4"},
    **{"mismatch": "mismatch, 1e-4", "cpu": "CPU s", "memory": "GiB", "still": "still"},
}
UNITS = {"first": 1e-4, "mismatch": 1e-4, "memory": 1024}
HELD_OUT = 96
RATES = {"smollm2": 1e-4, "tiny": 3e-3}
"""Learning rates for LoRA. Full training uses a tenth."""


def larger(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """Return 1 if the first number of the answer is the larger one, else 0."""
    numbers = [re.findall(r"\d+", c if isinstance(c, str) else c[-1]["content"]) for c in completions]
    return [float(n[:1] == [a]) for n, a in zip(numbers, answer, strict=True)]


def tasks(n: int, seed: int) -> list[dict[str, Any]]:
    """Return `n` questions with answers."""
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
    for name, value in zip(SIZE, (12, 4, 8, 12), strict=True):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--results", type=Path, default=Path("runs/precision.jsonl"))
    parser.add_argument("--products", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("FORM", "SEED"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.products:
        return products()
    if given.one:
        print("RESULT " + json.dumps(measure(given.one[0], int(given.one[1]), given)), flush=True)
        return
    forms = [f for f in given.forms if given.policy != "tiny" or not f.startswith("TRL")]
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in forms}
    kept = KeptRows(given.results)
    for seed in given.seeds:
        for form in forms:
            key = [given.policy, form, seed, *(getattr(given, name) for name in SIZE)]
            row, _ = kept.get(key, partial(_run, form, seed, given))
            results[form].append(row)
            print(line(f"{form}, seed {seed}", [row]), flush=True)
    print("\n| all seeds, mean ± 95 % | " + " | ".join(COLUMNS.values()) + " |")
    for form, rows in results.items():
        print(line(form, rows), flush=True)
    print("\n| bfloat16 − float32, by seed | after | mean | gain | mean |")
    for kind in ("LoRA", "whole"):
        pairs = list(zip(results.get(f"{kind} {H}", ()), results.get(f"{kind} {F}", ()), strict=False))
        if pairs:
            print(f"| {kind} | " + " | ".join(differences(pairs)) + " |", flush=True)


def differences(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[str]:
    """Format the pairwise differences in success after training and in its gain, then the mean with its interval."""
    cells: list[str] = []
    for start in (0.0, 1.0):
        apart = [(a["after"] - start * a["before"]) - (b["after"] - start * b["before"]) for a, b in pairs]
        cells += [", ".join(f"{d:+.2f}" for d in apart), interval(apart)]
    return cells


def line(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Format a row of the table."""
    cells = (interval([r[key] / UNITS.get(key, 1) for r in rows if r.get(key) is not None]) for key in COLUMNS)
    return " | ".join([f"| {name}", *cells]) + " |"


def _run(form: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.precision", "--one", form, str(seed), "--policy", given.policy]
    for name in SIZE:
        command += [f"--{name}", str(getattr(given, name))]
    environment = {**CPU_SETTINGS, **os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    found = [text for text in done.stdout.splitlines() if text.startswith("RESULT ")]
    if not found:
        sys.exit(done.stdout[-2000:] + done.stderr[-4000:])
    return json.loads(found[-1].removeprefix("RESULT "))


def run_config(form: str, seed: int, given: argparse.Namespace, folder: Path) -> Any:
    """Return the configuration of a form. Its tasks are files in `folder`."""
    from grpo_tui.configs.schema import RunConfig

    lora, formats = FORMS[form]
    tiny = given.policy == "tiny"
    model: dict[str, Any] = {"device": "cpu", "sft_adapters": None} | ({} if lora else {"lora": None})
    model |= dict(zip(("weights", "compute", "sampling"), formats, strict=True))
    training = {
        "max_steps": given.steps,
        "learning_rate": RATES["tiny" if tiny else "smollm2"] * (1 if lora else 0.1),
        "trl": {"lr_scheduler_type": "constant"},
        "save_every": 0,
        "eval_every": given.steps // 2,
    }
    config = {"seed": seed, "model": model, "training": training}
    if tiny:
        del model["sft_adapters"]
        return RunConfig.model_validate({**config, "environment": {"eval_tasks": HELD_OUT}})
    model["base"] = str(smollm2()) if given.policy == "smollm2" else given.policy
    training |= {"prompts_per_step": given.prompts, "num_generations": given.group, "max_turn_tokens": given.tokens}
    training |= {"max_trajectory_tokens": 256}
    files = {"source": tasks(given.steps * given.prompts, seed), "eval_source": tasks(HELD_OUT, 10_000)}
    for name, rows in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {name: str(folder / f"{name}.jsonl") for name in files}
    environment = {"reward_funcs": {"benchmarks.precision.larger": 1.0}, "eval_tasks": HELD_OUT}
    return RunConfig.model_validate(
        {**config, "data": {**source, "completions": "messages"}, "environment": environment}
    )


def measure(form: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Train one form in this process."""
    from grpo_tui.engine.policy.models import load_policy

    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = run_config(form, seed, given, folder)
        trained = (_train_stock if form.startswith("TRL") else _train)(config, folder)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        base = load_policy(config.model, adapters=config.model.sft_adapters, trainable=False)[0]
        return {**trained["numbers"], "kl": _learned(trained["model"], base, trained["rows"]), "memory": memory}


OUTPUTS = {
    "none": (),
    "gate": ("gate",),
    "down_proj": ("down_proj",),
    "o_proj, down_proj, gate": ("o_proj", "down_proj", "gate"),
    "gate_proj, up_proj, gate": ("gate_proj", "up_proj", "gate"),
    "all": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "gate"),
}
"""Products with float32 outputs. `gate`: silu(gate) · up is rounded once."""


def products() -> None:
    """Print the KL between cached decoding and one pass over 48 texts of 12 tokens, by the float32 outputs."""
    import torch
    from torch.nn import functional as F

    from grpo_tui.configs.sections.model import ModelConfig
    from grpo_tui.engine.policy.kl import kl_directions
    from grpo_tui.engine.policy.models import load_policy
    from grpo_tui.engine.policy.precision import float_product
    from grpo_tui.engine.policy.prepared import inference

    formats = dict.fromkeys(("weights", "compute", "sampling"), H)
    config = ModelConfig.model_validate({"base": str(smollm2()), "device": "cpu", "sft_adapters": None, **formats})
    model: Any
    tokenizer: Any
    model, tokenizer = load_policy(config, trainable=False)
    torch.manual_seed(0)
    prompts = [
        tokenizer.apply_chat_template(r["prompt"], add_generation_prompt=True)["input_ids"] for r in tasks(64, 7)
    ]
    shortest = min(map(len, prompts))
    ids = torch.tensor([p for p in prompts if len(p) == shortest][:48])
    options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "max_new_tokens": 12, "min_new_tokens": 12}
    with inference(model):
        texts = model.generate(ids, attention_mask=torch.ones_like(ids), **options)

    def wide(self: Any, x: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return float_product(x.flatten(0, -2), self.weight, torch.bfloat16).view(*x.shape[:-1], -1)

    def gated(self: Any, x: Any) -> Any:
        return self.down_proj(F.silu(self.gate_proj(x).float()) * self.up_proj(x).float())

    for name, chosen in OUTPUTS.items():
        for path, module in model.named_modules():
            leaf = path.rsplit(".", 1)[-1]
            module.__dict__.pop("forward", None) if leaf == "mlp" or leaf.endswith("_proj") else None
            if leaf in chosen:
                module.forward = MethodType(wide, module)
            elif leaf == "mlp" and "gate" in chosen:
                module.forward = MethodType(gated, module)
        with inference(model):
            whole = model(texts[:, :-1]).logits[:, shortest - 1 :]
            parts, began = [], time.process_time()
            for rows in texts.split(8):
                out = model(rows[:, :shortest], use_cache=True)
                logits = [out.logits[:, -1:]]
                for column in range(shortest, texts.shape[1] - 1):
                    step = rows[:, column : column + 1]
                    out = model(step, past_key_values=out.past_key_values, use_cache=True)
                    logits.append(out.logits)
                parts.append(torch.cat(logits, 1))
        kl, seconds = kl_directions(torch.cat(parts), whole).reverse.flatten() * 1e4, time.process_time() - began
        print(f"| {name} | {kl.mean():.2f} ± {kl.std() / len(kl) ** 0.5:.2f} | {seconds:.1f} |", flush=True)


def _clock() -> Any:
    """Return a callback that records processor seconds of each step, and of all steps before each evaluation."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.steps: list[float] = []

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            self.began = time.process_time()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            self.steps.append(time.process_time() - self.began)

    return Clock()


def _train(config: Any, folder: Path) -> dict[str, Any]:
    from grpo_tui.configs import metric_names as metric
    from grpo_tui.engine.record.step_recorder import StepRecorder
    from grpo_tui.engine.training.rft import build_trainer

    log, clock = Log(), _clock()
    trainer, callbacks = build_trainer(config, folder / "run", StepRecorder(log))
    trainer.callback_handler.callbacks.insert(0, clock)
    first: list[Any] = []

    def observe(step: int, values: Mapping[str, Any]) -> None:
        if step == 1:
            first.extend((r.token_ids, r.agent_mask) for r in trainer.rollouts.generated)

    callbacks.recording.observers.append(observe)
    trainer.train()
    model = trainer.accelerator.unwrap_model(trainer.model)
    found = {
        k: [v[k] for _, v in sorted(log.steps.items()) if k in v] for k in (metric.SAMPLER_KL, metric.SUCCESS_TRAIN)
    }
    curve = [(s, v[metric.SUCCESS_SAMPLED]) for s, v in sorted(log.steps.items()) if metric.SUCCESS_SAMPLED in v]
    numbers = _numbers(clock.steps, curve, found[metric.SUCCESS_TRAIN], found[metric.SAMPLER_KL])
    numbers["still"] = log.alerts.get("no_movement")
    return {"model": model, "rows": first, "numbers": numbers}


def _train_stock(config: Any, folder: Path) -> dict[str, Any]:
    """Train with TRL's trainer, float32 weights and `bf16=True`, on the same tasks and hyperparameters."""
    from datasets import load_dataset
    from transformers import TrainerCallback
    from trl.trainer.grpo_trainer import GRPOTrainer

    from grpo_tui.engine.policy.models import load_policy
    from grpo_tui.engine.training.rft import grpo_config

    model, tokenizer = load_policy(config.model, trainable=True)
    args = grpo_config(config, folder, 1, 1)
    args.bf16, args.max_completion_length = True, config.training.max_turn_tokens
    rewards: list[float] = []
    kept: list[Any] = []
    clock = _clock()

    class Seen(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if "reward" in logs:
                rewards.append(logs["reward"])

    class Stock(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            made = super()._generate_and_score_completions(inputs)
            if not kept:
                names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
                kept.extend(zip(*(made[name].cpu().numpy() for name in names), strict=True))
            return made

    files = {"train": config.data.source, "test": config.data.eval_source}
    data: Any = load_dataset("json", data_files=files, cache_dir=str(folder / "cache"))
    trainer = Stock(
        model=model,
        reward_funcs=larger,  # type: ignore[arg-type]
        args=args,
        train_dataset=data["train"],
        processing_class=tokenizer,
        callbacks=[clock, Seen()],
    )
    before = _held_out(trainer, data["test"])
    trainer.train()
    curve = [(0, before), (config.training.max_steps, _held_out(trainer, data["test"]))]
    first = [
        (
            np.concatenate([p[pm > 0], c[cm > 0]]),
            np.concatenate([np.zeros(int(pm.sum()), bool), np.ones(int(cm.sum()), bool)]),
        )
        for p, pm, c, cm in kept
    ]
    numbers = _numbers(clock.steps, curve, rewards, [])
    return {"model": trainer.accelerator.unwrap_model(trainer.model), "rows": first, "numbers": numbers}


def _held_out(trainer: Any, rows: Any) -> float:
    """Measure the success of TRL's policy at temperature 1, sampled in its own formats."""
    import torch

    model, tokenizer = trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class
    length = trainer.args.max_completion_length
    model.eval()
    torch.manual_seed(0)
    tokenizer.padding_side = "left"
    ids = tokenizer.apply_chat_template(
        list(rows["prompt"]), add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad(), trainer.accelerator.autocast():
        made = model.generate(**ids, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=length)
    model.train()
    texts = tokenizer.batch_decode(made[:, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    return fmean(larger(texts, rows["answer"]))


def _numbers(
    seconds: Sequence[float], curve: Sequence[tuple[int, float]], training: Sequence[float], mismatch: Sequence[float]
) -> dict[str, Any]:
    """Return the columns, and `curve`: step, cumulative processor seconds of training, held-out success."""
    return {
        **{"before": curve[0][1], "after": curve[-1][1], "cpu": median(seconds)},
        "half": curve[1][1] if len(curve) > 2 else None,
        "first": mismatch[0] if mismatch else None,
        "mismatch": fmean(mismatch) if mismatch else None,
        "curve": [(step, sum(seconds[:step]), success) for step, success in curve],
        "training": list(training),
    }


def _learned(model: Any, base: Any, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    """Compute the exact KL(policy ‖ base) in nats per token, on rollouts of the base."""
    from grpo_tui.engine.policy.kl import kl_directions
    from grpo_tui.engine.policy.padded import padded_forward
    from grpo_tui.engine.policy.prepared import inference

    total, count = 0.0, 0
    for ids, mask in rows[:24]:
        with inference(model), inference(base):
            logits = [padded_forward(m, [ids], [mask]).logits for m in (model, base)]
            total += float(kl_directions(*logits).reverse.sum())
        count += int(mask.sum())
    return total / max(count, 1)


if __name__ == "__main__":
    main()

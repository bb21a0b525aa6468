"""A pretrained model learns real tasks: ours against TRL, at the same processor time.

    python -m benchmarks.pretrained [--tasks NAME ...] [--trainers NAME ...] [--seeds 0 1 2] [--seconds 240] [--marks 4]
                                    [--results runs/pretrained.jsonl] [--picture FILE.svg] [--device cpu|cuda]

SmolLM2-135M with LoRA and the default hyperparameters, 4 x 8 rollouts a step. Both trainers get the same tasks,
rewards, prompts, limits, adapters to start from, and processor seconds of training. TRL is its `GRPOTrainer` with
`TunedRollout` of `benchmarks.stock_rollout`, micro-batches of 8 and no gradient checkpointing. Both compute in bfloat16
if this CPU multiplies it fast, else in float32. Each saves its adapters at every mark, and `grpo-tui eval` measures
greedy success on 96 held-out tasks. `--device` is that of the SFT and of the evaluations; trainings run on the CPU.

| task | |
|---|---|
| sums | `chain_sum` of reasoning-gym, two terms of one digit; the answer is the last number |
| products | `products` of reasoning-gym, two factors of one digit; the answer is the last number |
| calculator | one call of a tool, then the answer |
| calculations | three calls, each with the result of the one before: four turns |

The model cannot call tools, so both calculator tasks start from adapters of a short SFT on other tasks. There TRL does
not merge adapters while it generates (see `TunedRollout`). Rows that `--results` holds are not measured again.
Intervals: 95 % over the seeds, Student's t. `--picture` draws all rows of `--results` and needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from grpo_tui.configs.model_facts import half_precision
from grpo_tui.engine.launch.children import CPU_SETTINGS

from .mechanisms import KeptRows, interval
from .smollm2 import smollm2

OURS, STOCK = "grpo-tui", "TRL"
GYM, CALCULATOR = "grpo_tui.envs.plugins.gym.ReasoningGymEnv", "grpo_tui.envs.calculator.CalculatorEnv"
NUMBER = {"dataset": "chain_sum", "instruction": "Answer with the number only.", "answer": "last_number"}
DIGITS = {"min_digits": 1, "max_digits": 1}
TASKS: dict[str, dict[str, Any]] = {
    "sums": {
        "class_path": GYM,
        "config": {**NUMBER, "options": {"min_terms": 2, "max_terms": 2, **DIGITS}},
        "turns": 1,
    },
    "products": {
        "class_path": GYM,
        "config": {**NUMBER, "dataset": "products", "options": {"min_terms": 2, "max_terms": 2, **DIGITS}},
        "turns": 1,
    },
    "calculator": {"class_path": CALCULATOR, "config": {"operations": 1}, "turns": 3, "sft": 12},
    "calculations": {"class_path": CALCULATOR, "config": {"operations": 3}, "turns": 6, "sft": 24},
}
"""Environment, largest number of turns, and steps of SFT before."""
HELD_OUT = 96


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--trainers", nargs="*", choices=[OURS, STOCK], default=[OURS, STOCK])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--seconds", type=int, default=240, help="processor seconds of training")
    parser.add_argument("--marks", type=int, default=4)
    parser.add_argument("--results", type=Path, default=Path("runs/pretrained.jsonl"))
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--one", nargs=4, metavar=("TRAINER", "TASK", "SEED", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        trainer, task, seed, folder = given.one
        print("RESULT " + json.dumps(train(trainer, task, int(seed), Path(folder), given)), flush=True)
        return
    kept = KeptRows(given.results)
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for seed in given.seeds:
        for task in given.tasks:
            for trainer in given.trainers:
                key = [trainer, task, seed, given.seconds]
                before, _ = kept.get(["before", task], partial(measure_before, task, given))
                row, _ = kept.get(key, partial(measure, trainer, task, seed, before["success"], given))
                rows.setdefault((task, trainer), []).append(row)
                curve = " ".join(f"{seconds:.0f} s {success:.2f}" for seconds, success in row["curve"])
                print(f"{task}, {trainer}, seed {seed}: {row['steps']} steps, {curve}", flush=True)
    print("\n| task | trainer | steps | seconds | before | after | gain | grpo-tui − TRL, after |")
    for (task, trainer), found in rows.items():
        curves = [[success for _, success in row["curve"]] for row in found]
        cells = [
            f"{max(row['curve'][-1][0] for row in found):.0f}",
            *(interval([c[i] for c in curves]) for i in (0, -1)),
        ]
        cells.append(interval([c[-1] - c[0] for c in curves]))
        other = [row["curve"][-1][1] for row in rows.get((task, STOCK), [])]
        apart = [c[-1] - o for c, o in zip(curves, other, strict=False)]
        cells.append(interval(apart) if trainer == OURS else "")
        print(f"| {task} | {trainer} | {interval([r['steps'] for r in found])} | " + " | ".join(cells) + " |")
    if given.picture:
        draw(kept.rows, given.tasks, given.picture)


def measure_before(task: str, given: argparse.Namespace) -> dict[str, Any]:
    """Evaluate the starting policy of a task. Held-out tasks are the same for all seeds."""
    folder = given.results.parent / "pretrained" / f"{task}-before"
    folder.mkdir(parents=True, exist_ok=True)
    start = adapters_of_sft(task, folder.parent, given.device)
    return {"success": evaluate([start or str(smollm2())], task, folder, given)[0]}


def measure(trainer: str, task: str, seed: int, before: float, given: argparse.Namespace) -> dict[str, Any]:
    """Train in a separate process and evaluate its adapters. The curve has processor seconds and held-out success."""
    folder = given.results.parent / "pretrained" / f"{task}-{seed}-{trainer}"
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.pretrained", "--one", trainer, task, str(seed), str(folder)]
    command += ["--seconds", str(given.seconds), "--marks", str(given.marks), "--device", given.device]
    # Hide GPUs, which the trainers would use.
    done = subprocess.run(command, capture_output=True, text=True, env={**environment(), "CUDA_VISIBLE_DEVICES": ""})
    found = [text for text in done.stdout.splitlines() if text.startswith("RESULT ")]
    if not found:
        sys.exit(done.stdout[-2000:] + done.stderr[-4000:])
    result = json.loads(found[-1].removeprefix("RESULT "))
    success = evaluate([str(folder / name) for _, name in result["marks"]], task, folder, given)
    seconds = [0.0, *(seconds for seconds, _ in result["marks"])]
    return {"steps": result["steps"], "curve": list(zip(seconds, [before, *success], strict=True))}


def evaluate(policies: list[str], task: str, folder: Path, given: argparse.Namespace) -> list[float]:
    """Return the greedy held-out success of each policy, which is the folder of a model or of adapters."""
    config = folder / "config.yaml"
    start = adapters_of_sft(task, given.results.parent / "pretrained", given.device)
    config.write_text(json.dumps(settings(task, 0, start, given.device)))
    command = [sys.executable, "-m", "grpo_tui.tui.cli"]
    command += ["--runs-dir", str(folder / "runs"), "eval", *policies, "--config", str(config), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-4000:])
    return [e["success"]["estimate"] for e in json.loads(done.stdout)["evaluations"]]


def environment() -> dict[str, str]:
    """Return the environment variables for subprocesses."""
    return {**CPU_SETTINGS, **os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def settings(task: str, seed: int, adapters: str | None, device: str) -> dict[str, Any]:
    """Return the configuration of a run, with this model's default hyperparameters."""
    row = TASKS[task]
    formats = dict.fromkeys(("weights", "compute", "sampling"), half_precision(device)[0])
    return {
        "seed": seed,
        "model": {"base": str(smollm2()), "device": device, "sft_adapters": adapters, **formats},
        "environment": {
            "class_path": row["class_path"],
            "config": {**row["config"], "max_turns": row["turns"]},
            "train_tasks": 4096,
            "eval_tasks": HELD_OUT,
        },
        "training": {
            **{"max_steps": 1000, "learning_rate": 1e-4, "trl": {"lr_scheduler_type": "constant"}},
            **{"prompts_per_step": 4, "num_generations": 8, "max_turn_tokens": 48, "max_trajectory_tokens": 512},
            **{"save_every": 0, "eval_every": 0},
        },
    }


def adapters_of_sft(task: str, folder: Path, device: str) -> str | None:
    """Train a task's starting adapters once. Returns None if the task starts from the model."""
    steps = TASKS[task].get("sft")
    if steps is None:
        return None
    made = folder.resolve() / f"sft-{task}"
    if not made.exists():
        config = settings(task, 1000, None, device)
        config |= {"mode": "sft", "sft": {"max_steps": steps, "demonstrations": 256, "eval_tasks": 0}}
        config["sft"]["output_dir"] = str(made)
        (folder / f"sft-{task}.yaml").write_text(json.dumps(config))
        command = [sys.executable, "-m", "grpo_tui.tui.cli"]
        command += ["--runs-dir", str(folder / "runs"), "train", str(folder / f"sft-{task}.yaml"), "--headless"]
        subprocess.run(command, check=True, capture_output=True)
    return str(made)


def train(trainer: str, task: str, seed: int, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Train in this process for the given processor seconds, saving adapters at each mark."""
    from transformers import TrainerCallback

    from grpo_tui.configs.schema import RunConfig

    from .grpo_step import build_ours, build_stock

    warnings.simplefilter("ignore")
    config = RunConfig.model_validate(settings(task, seed, adapters_of_sft(task, folder.parent, given.device), "cpu"))
    marks: list[tuple[float, str]] = []

    class Budget(TrainerCallback):
        used = 0.0
        reached = 0

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            self.began = time.process_time()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.used += time.process_time() - self.began
            self.steps = state.global_step
            if int(self.used * given.marks / given.seconds) > self.reached:  # a long step may pass several
                self.reached = int(self.used * given.marks / given.seconds)
                name = f"mark-{len(marks) + 1}"
                model: Any = built.accelerator.unwrap_model(built.model)
                model.save_pretrained(folder / name, selected_adapters=["default"])
                marks.append((self.used, name))
            control.should_training_stop = self.used >= given.seconds

    if trainer == OURS:
        built, _, close = build_ours(config, folder / "run")
    else:
        built, _, close = build_stock(config, folder / "run", micro=8, tuned=True)
    budget = Budget()
    built.callback_handler.callbacks.insert(0, budget)
    built.train()
    close()
    return {"steps": budget.steps, "marks": marks}


def draw(rows: list[dict[str, Any]], tasks: list[str], path: Path) -> None:
    """Plot success over processor seconds, one line per row and one color per trainer."""
    from matplotlib import pyplot

    pyplot.rcParams["svg.fonttype"] = "none"
    pyplot.rcParams["svg.hashsalt"] = "pretrained"  # makes the file reproducible
    figure, axes = pyplot.subplots(1, len(tasks), figsize=(4 * len(tasks), 3.2), sharey=True, squeeze=False)
    for axis, task in zip(axes[0], tasks, strict=True):
        for trainer, color in ((OURS, "tab:blue"), (STOCK, "tab:orange")):
            for i, row in enumerate(row for row in rows if row["key"][:2] == [trainer, task]):
                axis.plot(*zip(*row["curve"], strict=True), color=color, marker=".", label=None if i else trainer)
        axis.set(title=task, xlabel="processor seconds", ylim=(0, 1))
    axes[0][0].set_ylabel("held-out success, greedy")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    main()

"""Replay, dynamic sampling and prompts by difficulty: `python -m benchmarks.replay [--seeds 3] [--steps 60]`.

A task on which most groups are all right or all wrong: some prompts are easy for the starting policy, most are hard,
few are in between. Plain GRPO throws such groups' places away; selective sample replay fills them from its buffer,
DAPO's dynamic sampling generates other prompts. `difficulty` draws prompts by their pass rates. The table gives,
averaged over seeds, the share of the batch that carried a gradient, the share of groups filtered out, how many
rollouts were generated, the steps until held-out success first reached the goal, and success at the end.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, cast

from datasets import Dataset
from transformers import TrainerCallback
from trl.trainer.grpo_config import GRPOConfig

from grpo_tui.configs import metric_names as metric
from grpo_tui.engine.agents.transformers_agent import TransformersAgent
from grpo_tui.engine.policy.prepared import acting
from grpo_tui.engine.rollouts.difficulty import Difficulty
from grpo_tui.engine.rollouts.evaluation import evaluate
from grpo_tui.engine.rollouts.replay import ReplayBuffer
from grpo_tui.engine.rollouts.runner import parse_row
from grpo_tui.engine.training.env_trainer import GRPOEnvTrainer
from grpo_tui.engine.training.pipeline import RolloutOptions
from grpo_tui.envs.base import env_name
from grpo_tui.envs.seeds import task_id

from .mechanisms import KeptRows, interval
from .small_worlds import DEMONSTRATIONS, Keys, make_policy

NAMES = {"off": "plain GRPO", "ssr": "selective replay", "dapo": "dynamic sampling", "difficulty": "by difficulty"}


def main() -> None:
    """Train every mode with every seed, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--goal", type=float, default=0.7)
    parser.add_argument("--mode", default=",".join(NAMES), help="of " + ", ".join(NAMES))
    parser.add_argument("--results", type=Path, default=Path("runs/replay.jsonl"))
    given = parser.parse_args()
    goal = f"steps to {given.goal:.0%}"
    print(f"{'':18}{'effective batch':>16}{'filtered':>10}{'rollouts':>10}{goal:>14}{'success':>9}")
    kept = KeptRows(given.results)
    for mode in given.mode.split(","):
        measures = [partial(train, mode, seed, given.steps, given.goal) for seed in range(given.seeds)]
        runs = [kept.get([mode, seed, given.steps, given.goal], one)[0] for seed, one in enumerate(measures)]
        columns = [mean(r[k] for r in runs) for k in ("effective", "filtered", "rollouts", "steps", "success")]
        late = "+" if any(r["late"] for r in runs) else " "
        print(
            f"{NAMES[mode]:18}{columns[0]:16.0%}{columns[1]:10.0%}{columns[2]:10.0f}{columns[3]:13.0f}{late}"
            f"{columns[4]:9.2f}   steps {interval([r['steps'] for r in runs])}, "
            f"success {interval([r['success'] for r in runs])}",
            flush=True,
        )


def train(mode: str, seed: int, steps: int, goal: float) -> dict[str, float]:
    """Train once and summarise the steps."""
    model, tokenizer = make_policy([(Keys(), DEMONSTRATIONS)], seed)
    agent = TransformersAgent(model, tokenizer, max_turn_tokens=2, max_trajectory_tokens=64)
    path = f"{Path(__file__).with_name('small_worlds.py')}:Keys"
    tasks = Keys().make_tasks("train", Keys.tasks, seed)
    rows = [{"env_class_path": path, "env_config": "{}", "task_data": json.dumps(t)} for t in tasks]
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=64,
            num_generations=8,
            max_steps=steps,
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            learning_rate=2e-3,
            lr_scheduler_type="constant",
            beta=0.0,
            disable_tqdm=True,
            remove_unused_columns=False,
            activation_checkpointing=False,
            seed=seed,
        )
        trainer = GRPOEnvTrainer(
            agent,
            tokenizer,
            args=arguments,
            train_dataset=Dataset.from_list(rows * 8),
            model=model,
            options=RolloutOptions(dynamic_rounds=3 if mode == "dapo" else 0),
            replay=ReplayBuffer(seed=seed) if mode == "ssr" else None,
        )
        if mode == "difficulty":
            trainer.pipeline.difficulty = Difficulty([task_id(env_name(Keys()), t) for t in tasks * 8], seed)
        log = Log(trainer, [parse_row(r) for r in rows])
        trainer.add_callback(log)
        trainer.train()
    reached = next((step for step, success in log.success if success >= goal), None)
    return {
        "effective": mean(log.effective),
        "filtered": mean(log.filtered),
        "rollouts": sum(log.rollouts) / len(log.rollouts),
        "steps": float(reached if reached is not None else steps),
        "late": float(reached is None),
        "success": mean(s for _, s in log.success[-3:]),
    }


class Log(TrainerCallback):
    """Keeps the metrics of each step, and the success after it."""

    def __init__(self, trainer: GRPOEnvTrainer, rows: list[Any]) -> None:
        self.trainer, self.rows = trainer, rows
        self.effective: list[float] = []
        self.filtered: list[float] = []
        self.rollouts: list[int] = []
        self.success: list[tuple[int, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Record the metrics of a step."""
        if not logs or "loss" not in logs:
            return
        self.effective.append(float(cast(float, self.trainer.rollouts.metrics[metric.EFFECTIVE_BATCH])))
        self.filtered.append(float(cast(float, self.trainer.rollouts.metrics[metric.FILTERING_RATE])))
        self.rollouts.append(len(self.trainer.rollouts.generated))
        with acting(self.trainer.policy.model):
            found = evaluate(self.trainer.runner, self.rows, temperature=0.0, step=state.global_step)
        self.success.append((state.global_step, found.success))


if __name__ == "__main__":
    main()
